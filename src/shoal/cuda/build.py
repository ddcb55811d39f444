"""Compiles a plug-in and the kernels around it: to PTX for a GPU, or to a library with a loop as the grid.

The cache has `my_env-KEY-COMPILER.ptx`: KEY covers the source, the headers it includes, the kernels and the
options, COMPILER the compiler and its flags. A machine without the compiler uses any file with its KEY, so
PTX that was built elsewhere can be copied into the cache.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shoal.cuda.bake import bake
from shoal.errors import BuildError, explain_os_errors
from shoal.native import compilers
from shoal.native.build import cache_directory, include_directory, touch
from shoal.native.compilers import LANGUAGES, find_compiler, find_zig
from shoal.native.plugin import PluginInfo

__all__ = ["LIBM_MARK", "build_library", "build_ptx", "find_libdevice", "find_source", "write_ptx"]

KERNEL = Path(__file__).parent / "kernel"
_SHARED = ("-std=c11", "-O3", "-ffp-contract=off", "-DSHOAL_GRID", "-DSHOAL_ONE_ISA")
_ARCHITECTURE = "sm_75"
"""The oldest GPU that the PTX runs on; the driver compiles it for newer ones."""
_PTX = (
    *("-target", "nvptx64-cuda-none", f"-mcpu={_ARCHITECTURE}+ptx63"),
    *("-ffreestanding", "-nostdlibinc", "-fno-sanitize=all", "-Wno-unused-command-line-argument"),
    *(f"-I{KERNEL / 'include'}", "-S"),
)
LIBM_MARK = "// calls functions of libdevice"
"""The first line of PTX whose last bits may differ from the CPU's."""
_HEADERS = ("float.h", "limits.h", "stdalign.h", "stdarg.h", "stdbool.h", "stddef.h", "stdint.h")
"""Headers that the compiler itself brings."""
_NO_HEADER = re.compile(r"fatal error: '([^']+)' file not found")
_PLAIN_PATH = re.compile(r"[ !#->@-\[\]-~]+")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|(\w+))', re.MULTILINE)
_EXTERN = re.compile(r"^\.extern \.(?:func|global)[^;{]*?\b([A-Za-z_]\w*)\s*(?:\(|;|\[)", re.MULTILINE)


def find_source(library: Path, given: object) -> Path:
    """Returns the C file of a plug-in: the one that was given, or that of a bundled environment."""
    path = Path(str(given))
    if path.suffix == ".c":
        return path.absolute()
    if str(given).startswith("puffer:"):
        raise BuildError(
            f"{given} cannot run on a GPU: PufferLib's environments allocate memory in init and keep "
            "pointers in their structs (docs/cuda.md says what it would take)"
        )
    if path.suffix in LANGUAGES:
        raise BuildError(f"{given} is C++, and a GPU needs an environment in C (one file, ending in .c)")
    bundled = library.parent / library.stem / f"{library.stem}.c"
    if bundled.is_file():
        return bundled
    raise BuildError(
        f"a GPU needs the C source of the environment, and {given} is not one; pass the path of its .c file "
        "(one file, in C, with include/shoal/env.h)"
    )


def build_ptx(info: PluginInfo, source: Path) -> str:
    """Returns the PTX of the kernels for these options; from the cache if nothing has changed."""
    return write_ptx(info, source).read_text()


def write_ptx(info: PluginInfo, source: Path, *, output: Path | None = None) -> Path:
    """Compiles the kernels for these options; returns the path of the PTX.

    Without `output` it is in the cache and compiled only if something has changed. In an `output` that is a
    directory it has the name by which a cache finds it.
    """
    header = bake(info, source)
    key, zig = _hash_inputs(source, header), find_zig()
    directory = cache_directory()
    flags = [*_SHARED, "-fwrapv-pointer", *_PTX]
    tool = "*" if zig is None else _digest(str(zig.stat().st_size), *flags, str(find_libdevice() is None))
    found = sorted(directory.glob(f"{glob.escape(source.stem)}-{key}-{tool}.ptx"))
    if found and output is None:
        touch(found[0])
        return found[0]
    if zig is None:
        raise BuildError(
            f"no PTX of {source.name} for these options is in {directory}, and there is no GPU compiler: "
            'pip install "shoal[cuda]" brings one (the package ziglang), or copy PTX that '
            "`shoal build --device cuda` made elsewhere into that directory"
        )
    name = f"{source.stem}-{key}-{tool}.ptx"
    target = directory / name
    if output is not None:
        target = output.absolute() / name if output.is_dir() else output.absolute()
    text = _compile_ptx([str(zig), "cc", *flags], source, header, info.plugin.name)
    if _hash_inputs(source, header) != key:  # a file changed while the compiler ran
        return write_ptx(info, source, output=output)
    _write(target, text, mode=0o600 if output is None else 0o644)
    return target


def _compile_ptx(command: list[str], source: Path, header: str, name: str) -> str:
    with tempfile.TemporaryDirectory(prefix="shoal-") as scratch:
        made = Path(scratch) / "grid.ptx"
        base = [*command, *_prepare(scratch, source, header), str(KERNEL / "grid.c"), "-o", str(made)]
        try:
            compilers.run(base)
        except BuildError as error:
            raise _explain_header(error, name) or error from None
        text = made.read_text()
        if "__nv_" in text:
            device = find_libdevice()
            if device is None:
                raise BuildError(
                    f"{name} calls functions of libm on the GPU, which needs NVIDIA's libdevice: pip install "
                    'nvidia-nvvm (or "shoal[cuda]"; it also comes with Triton)'
                )
            linked = [part for path in ("-mlink-builtin-bitcode", str(device)) for part in ("-Xclang", path)]
            compilers.run([*base, *linked])
            text = f"{LIBM_MARK}\n{made.read_text()}"
    missing = sorted(set(_EXTERN.findall(text)))
    if missing:
        raise BuildError(
            f"{name} cannot run on a GPU: its init, reset or step uses {', '.join(missing)}, which a GPU "
            "does not have. Keep the whole state of an environment in its instance, and allocate nothing"
        )
    return text


def _explain_header(error: BuildError, name: str) -> BuildError | None:
    """Returns an error that names a header which a GPU does not have; None if that is not the reason."""
    header = _NO_HEADER.search(str(error))
    if header is None:
        return None
    have = ", ".join(sorted({*_HEADERS, *(path.name for path in (KERNEL / "include").iterdir())}))
    return BuildError(
        f"{name} cannot be compiled for a GPU: it includes <{header[1]}>, which a GPU does not have. It has "
        f"{have}. Put code for the CPU alone, such as main, between `#ifndef SHOAL_GRID` and `#endif`",
        **error._facts,
    )


def build_library(info: PluginInfo, source: Path, *, flags: Sequence[str] = ()) -> Path:
    """Returns the library of the same kernels for this CPU, compiled if something has changed."""
    program = find_compiler(LANGUAGES[".c"])
    # AddressSanitizer sees writes past the arrays of results, but not those past a tile.
    header = bake(info, source, has_tile=not any(flag.startswith("-fsanitize") for flag in flags))
    own = [*_SHARED, "-fno-strict-overflow", "-fPIC", "-fvisibility=hidden", "-w", *flags]
    key = _hash_inputs(source, header)
    tool = _digest(*program, *own, str(os.stat(program[0]).st_mtime_ns))
    library = cache_directory() / f"{source.stem}-{key}-{tool}.so"
    if library.is_file():
        touch(library)
        return library
    with tempfile.TemporaryDirectory(prefix=".grid-", dir=library.parent) as scratch:
        made = Path(scratch) / library.name
        paths = _prepare(scratch, source, header)
        compilers.run([*program, *own, *paths, "-shared", str(KERNEL / "grid.c"), "-o", str(made), "-lm"])
        if _hash_inputs(source, header) != key:
            return build_library(info, source, flags=flags)
        with explain_os_errors(f"write {library}", BuildError):
            os.replace(made, library)
    return library


def find_libdevice() -> Path | None:
    """Returns NVIDIA's library of mathematical functions, of the package nvidia-nvvm or of Triton."""
    for package, places in (
        ("nvidia", ("*/nvvm/libdevice", "cuda_nvcc/nvvm/libdevice")),
        ("triton", ("backends/nvidia/lib",)),
    ):
        spec = importlib.util.find_spec(package)
        for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
            for place in places:
                found = sorted(Path(directory).glob(f"{place}/libdevice*.bc"))
                if found:
                    return found[-1]
    return None


def _prepare(scratch: str, source: Path, header: str) -> list[str]:
    """Writes baked.h; returns the compiler's include directories."""
    if not _PLAIN_PATH.fullmatch(str(source)):  # an #include cannot escape a name
        (Path(scratch) / "plugin.c").symlink_to(source)
        header = "\n".join(['#define GRID_PLUGIN "plugin.c"', *header.splitlines()[1:]]) + "\n"
    (Path(scratch) / "baked.h").write_text(header)
    return [f"-I{path}" for path in (scratch, source.parent, KERNEL, _seed_directory(), include_directory())]


def _seed_directory() -> Path:
    """Returns the directory of core/seed.c: in the package, or in a checkout."""
    checkout = Path(__file__).resolve().parents[3]
    for directory in (include_directory().parent, checkout):
        if (directory / "core" / "seed.c").is_file():
            return directory
    raise BuildError(
        f"core/seed.c is neither in {include_directory().parent} nor in {checkout}; install again"
    )


def _hash_inputs(source: Path, header: str) -> str:
    """Returns a hash of the source, of all files that it includes, of the kernels and of the options."""
    ours = [KERNEL / "grid.c", KERNEL / "grid.h", *sorted((KERNEL / "include").iterdir())]
    seen: dict[Path, bytes] = {}
    waiting = [source, *ours, _seed_directory() / "core" / "seed.c"]
    while waiting:
        path = waiting.pop(0)
        if path in seen:
            continue
        try:
            seen[path] = content = path.read_bytes()
        except OSError as error:
            raise BuildError(f"cannot read {path}: {error.strerror}") from error
        for quoted, bracketed, macro in _INCLUDE.findall(content):
            named = os.fsdecode(quoted or bracketed)
            places = [*([path.parent] if quoted else []), source.parent, include_directory()]
            waiting += [found for place in places if named and (found := place / named).is_file()][:1]
            if macro and path not in ours:  # it may be any file beside the source
                waiting += sorted(one for one in source.parent.glob("*.[ch]") if one.is_file())
    contents = [hashlib.sha256(content).hexdigest() for content in seen.values()]
    return _digest(*contents, "\n".join(header.splitlines()[1:]))  # its first line has the path


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def _write(path: Path, text: str, *, mode: int) -> None:
    with explain_os_errors(f"write {path}", BuildError):
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".ptx", delete=False) as file:
            file.write(text)
        os.chmod(file.name, mode)
        os.replace(file.name, path)
