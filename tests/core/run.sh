#!/bin/sh
# Builds every tests/core/test_*.c with the core and runs it; exit status 1 if any fails.
#
#   tests/core/run.sh                                 plain, into build/core-plain/
#   SANITIZE=address,undefined tests/core/run.sh      under sanitizers, into build/core-address-undefined/
#   TESTS=tests/core/test_fuzz.c FUZZ_CASES=100000 tests/core/run.sh
#   CC=clang CFLAGS=-O3 SANITIZE=thread tests/core/run.sh
#   CC=... LAUNCHER="qemu-aarch64 -L ..." OUT=build/core-arm64 tests/core/run.sh    for another machine
set -u
cd "$(dirname "$0")/../.." || exit 1

cc=${CC:-cc}
sanitize=${SANITIZE:-}
flags="-std=c11 -Wall -Wextra -Werror -g -O1 ${CFLAGS:-}"
out=${OUT:-build/core-$(echo "${sanitize:-plain}" | tr , -)}
launcher=${LAUNCHER:-}

if ! command -v "$cc" >/dev/null 2>&1; then
    echo "failed: there is no C compiler '$cc'; install gcc or clang, or set CC" >&2
    exit 1
fi
mkdir -p "$out" || exit 1
rm -f "$out"/core_*.o

if [ -n "$sanitize" ]; then
    flags="$flags -fsanitize=$sanitize -fno-sanitize-recover=all -fno-omit-frame-pointer"
    # GCC writes a small memcpy out as instructions without telling the thread sanitizer.
    case $sanitize in *thread*) flags="$flags -fno-builtin" ;; esac
    echo 'int main(void) { return 0; }' >"$out/trivial.c"
    if ! "$cc" -fsanitize="$sanitize" "$out/trivial.c" -o "$out/trivial" 2>"$out/trivial.log"; then
        version=$("$cc" -dumpversion 2>/dev/null | cut -d. -f1)
        echo "skipped: this compiler has no $sanitize sanitizer runtime" \
            "(Debian: apt install libgcc-${version:-12}-dev; clang: libclang-rt-dev)"
        exit 0
    fi
    # Thread sanitizers of some compilers cannot place their shadow memory under strong randomisation.
    if ! "$out/trivial" >/dev/null 2>&1; then
        if command -v setarch >/dev/null 2>&1 && setarch -R "$out/trivial" >/dev/null 2>&1; then
            launcher="setarch -R"
        else
            echo "skipped: programs under the $sanitize sanitizer do not start on this kernel" \
                "(try: sysctl vm.mmap_rnd_bits=28)"
            exit 0
        fi
    fi
fi

# shellcheck disable=SC2086  # flags are a list of words
for source in core/*.c; do
    "$cc" $flags -Icore -Iinclude -pthread -c "$source" -o "$out/core_$(basename "$source" .c).o" || exit 1
done

# The libraries that tests load, beside the programs.
for source in tests/core/plugins/*.c; do
    [ -f "$source" ] || continue
    # shellcheck disable=SC2086  # flags are a list of words
    "$cc" $flags -Iinclude -shared -fPIC "$source" -o "$out/$(basename "$source" .c).so" || exit 1
done

failures=0
for source in ${TESTS:-tests/core/test_*.c}; do
    program=$out/$(basename "$source" .c)
    echo "== $source${sanitize:+ ($sanitize)}"
    # shellcheck disable=SC2086  # flags and launcher are lists of words
    if ! "$cc" $flags -Icore -Iinclude -pthread "$source" "$out"/core_*.o -lm -ldl -o "$program" ||
        ! $launcher "$program"; then
        echo "FAILED: $source${sanitize:+ ($sanitize)}" >&2
        failures=$((failures + 1))
    fi
done
[ "$failures" -eq 0 ]
