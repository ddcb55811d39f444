#!/bin/sh
# Runs a command with the module that has AddressSanitizer in place of the installed one:
#
#   tests/fuzz/asan.sh .venv/bin/python -m tests.fuzz.run segment --cases 100000
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
SHOAL_MODULE=$("$python" -m tests.built --build asan)
LD_PRELOAD="$("${CC:-cc}" -print-file-name=libasan.so) $("${CXX:-c++}" -print-file-name=libstdc++.so)"
# Python keeps memory to its end; what a file claims to need and does not have is refused, not given.
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=1024:handle_abort=1
export SHOAL_MODULE LD_PRELOAD ASAN_OPTIONS
exec "$@"
