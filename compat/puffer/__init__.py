"""Compiles an unmodified PufferLib environment into a plug-in and resolves its options.

    ocean/NAME  ->  which of the three contracts  ->  library (build.py)  +  settings, one line of text

The headers in include/puffer, beside this file, replace PufferLib's own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.compat.puffer.options import format_settings, read_config
from shoal.errors import BuildError
from shoal.native.build import build, cache_directory

__all__ = ["INCLUDE", "Prepared", "Source", "build_puffer", "find_source", "prepare", "writable_globals"]

INCLUDE = Path(__file__).resolve().parent / "include"
"""The directory of puffer/state.h and of the headers that replace PufferLib's."""


@dataclass(frozen=True, slots=True)
class Source:
    """The files of an environment in its folder."""

    folder: Path
    name: str
    contract: str
    """ "3.0", "4.0" or "5.0"."""
    file: Path
    """The file to compile: binding.c, or with 5.0 the environment's header."""
    python: Path | None
    """NAME.py, with contract 3.0."""
    config: Path | None
    root: Path
    """The directory of the assets: the nearest one above that contains resources/."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A library and the settings that make_vec passes to it."""

    library: Path
    settings: str
    writable_globals: list[str]


def prepare(
    path: str | Path,
    options: Mapping[str, Any],
    *,
    log: bool = False,
    compiler: str | None = None,
    flags: Sequence[str] = (),
) -> Prepared:
    """Builds the environment in a folder and resolves its options."""
    source = find_source(path)
    library = build_puffer(source, compiler=compiler, flags=flags)
    return Prepared(library, format_settings(source, options, log), writable_globals(library))


def find_source(path: str | Path) -> Source:
    """Finds an environment's files, given a folder such as PufferLib/ocean/NAME or the binding.c in it."""
    folder = Path(path).absolute()
    if folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        raise BuildError(f"there is no folder {folder}; give one such as PufferLib/ocean/squared")
    name = folder.name
    contract, file = _find_contract(folder, name)
    python = folder / f"{name}.py"
    above = [folder, *list(folder.parents)[:4]]
    places = [one / "config" / where / f"{name}.ini" for one in above for where in ("", "ocean")]
    config = next((one for one in [folder / f"{name}.ini", *places] if one.is_file()), None)
    root = next((one for one in above if (one / "resources").is_dir()), folder)
    return Source(folder, name, contract, file, python if python.is_file() else None, config, root)


def _find_contract(folder: Path, name: str) -> tuple[str, Path]:
    binding = folder / "binding.c"
    headers = [one for one in (folder / f"{name}.h", folder / "binding.h") if one.is_file()]
    for file in [binding, *headers]:
        text = file.read_text(errors="replace") if file.is_file() else ""
        if re.search(r'#\s*include\s*"[^"]*env_binding\.h"', text):
            if re.search(r"\bDict\s*\*", text) or "OBS_TYPE" in text:
                raise BuildError(
                    f"{file} is of a dialect between PufferLib 3.0 and 4.0 (env_binding.h with a Dict); take "
                    "the environment from 3.0, or from 4.0, where it includes vecenv.h"
                )
            return "3.0", file
        if re.search(r'#\s*include\s*"[^"]*vecenv\.h"', text):
            return "4.0", file
        if re.search(r'#\s*include\s*"[^"]*pufferenv\.h"', text):
            return "5.0", file
    if list(folder.glob("cy_*.pyx")) or list(folder.glob("*.pyx")):
        raise BuildError(
            f"{folder} is of PufferLib before 3.0: its binding is Cython; take the environment from a newer "
            "PufferLib, where it has a binding.c"
        )
    if binding.is_file():
        raise BuildError(f"{binding} includes none of env_binding.h, vecenv.h and pufferenv.h")
    raise BuildError(
        f"{folder} has no binding.c (PufferLib 3.0 and 4.0) and no {name}.h that includes pufferenv.h (5.0)"
    )


# ---- Building


def build_puffer(
    source: Source,
    *,
    output: Path | None = None,
    compiler: str | None = None,
    flags: Sequence[str] = (),
) -> Path:
    """Compiles an environment; the library contains its default options."""
    compat = INCLUDE / "puffer"
    try:
        defaults = format_settings(source, {}, False)
    except BuildError:
        defaults = ""  # the caller must then pass them
    raylib, libraries = _find_raylib(source, compat)
    own = [
        "-std=gnu11",
        "-w",  # the code is not ours; some compilers turn the next two warnings into errors
        "-Wno-incompatible-pointer-types",
        "-Wno-int-conversion",
        "-fwrapv",  # Python, and so PufferLib, compiles with it
        "-include",
        str(compat / "prelude.h"),
        f"-I{compat}",
        f"-I{INCLUDE}",
        f"-I{compat / 'python'}",
        f"-I{raylib}",
        f'-DSHOAL_PUFFER_NAME="{source.name}"',
        f'-DSHOAL_PUFFER_SETTINGS="{defaults}"',
        "-DPLATFORM_DESKTOP",
        *flags,
    ]
    file = source.file
    own += _find_flags(source)
    if source.contract == "3.0":
        file = _make_overlay(source, compat / "env_binding.h")
    if source.contract == "5.0":
        own += [f'-DSHOAL_PUFFER_SOURCE="{source.file.name}"', f"-I{source.folder}"]
        file = compat / "pufferenv.c"
    try:
        return build(file, output=output, compiler=compiler, flags=own, libraries=libraries)
    except BuildError as error:
        _explain(source, error)
        raise


def _find_flags(source: Source) -> list[str]:
    """Returns macros for facts that the preprocessor cannot find: struct members, order of declarations."""
    files = {source.file, *source.folder.glob("*.h")}
    texts = [one.read_text(errors="replace") for one in sorted(files)]
    own = source.file.read_text(errors="replace")
    flags = []
    if any(re.search(r"\b(unsigned|int|long|u?int\d+_t)(\s+(int|long))*\s+rng\s*;", text) for text in texts):
        flags.append("-DPUFFER_HAS_RNG")
    if all(_checks_fopen(text) for text in texts):
        flags.append("-DPUFFER_LOOKS_AT_FILES")
    if source.contract == "5.0":
        obs_type = re.search(r"\bobs_t\s*;", own)
        include = re.search(r'#\s*include\s*"[^"]*pufferenv\.h"', own)
        if obs_type is None or (include is not None and obs_type.start() > include.start()):
            flags.append("-DPUFFER_OBS_LATE")
        if source.config is not None:  # PufferLib's trainer reads the mask's size from it
            size = int(read_config(source.config, "vec").get("action_mask_size", 0))
            flags += [f"-DPUFFER_SHOWS_MASK={size}"] if size > 0 else []
        elif any(re.search(r"\baction_mask\b(?!\s*=\s*(NULL|0)\b)", text) for text in texts):
            flags.append("-DPUFFER_SHOWS_MASK=0")
    return flags


def _checks_fopen(text: str) -> bool:
    """Returns whether the code checks the result of every fopen, so that fopen may return NULL."""
    for call in re.finditer(r"\bfopen\s*\(", text):
        name = re.search(r"(\w+)\s*=\s*$", text[: call.start()])
        check = rf"\bif\s*\([^()]*\b{name[1]}\s*(\)|[=!]=\s*(NULL|0)\b)" if name is not None else r"(?!)"
        if re.search(check, text[call.end() : call.end() + 300]) is None:
            return False
    return True


def _make_overlay(source: Source, header: Path) -> Path:
    """Makes a folder of links to the environment's files with our ../env_binding.h; returns its binding.c."""
    digest = hashlib.sha256(os.fsencode(source.folder)).hexdigest()[:16]
    top = cache_directory() / f"puffer-{digest}"
    folder = top / source.name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = {folder / one.name: one for one in source.folder.iterdir()}
    wanted |= {top / one.name: one for one in source.folder.parent.iterdir() if one.name != source.name}
    wanted[top / "env_binding.h"] = header
    for link, target in wanted.items():
        with suppress(OSError):
            if os.readlink(link) == str(target):
                continue
        temporary = link.with_name(f".{link.name}-{os.getpid()}")
        with suppress(FileNotFoundError):
            temporary.unlink()
        temporary.symlink_to(target)
        os.replace(temporary, link)
    for link in [*folder.iterdir(), *top.iterdir()]:
        if link.is_symlink() and link not in wanted:
            link.unlink(missing_ok=True)
    return folder / source.file.name


def _find_raylib(source: Source, compat: Path) -> tuple[Path, list[str]]:
    """Returns the directory of raylib.h and the libraries to link, of $RAYLIB (include/, lib/) or our own."""
    chosen = os.environ.get("RAYLIB", "").strip()
    if not chosen:
        return compat / "raylib", []
    include, folder = Path(chosen).absolute() / "include", Path(chosen).absolute() / "lib"
    if not (include / "raylib.h").is_file():
        raise BuildError(f"RAYLIB is {chosen}, but there is no {include / 'raylib.h'}; correct the variable")
    if (folder / "libraylib.a").is_file():
        return include, [str(folder / "libraylib.a"), "-lpthread", "-ldl"]
    for name in ("libraylib.so", "libraylib.dylib"):
        if (folder / name).is_file():
            return include, [str(folder / name), f"-Wl,-rpath,{folder}"]
    raise BuildError(f"RAYLIB is {chosen}, but there is no libraylib.a and no libraylib.so in {folder}")


def _explain(source: Source, error: BuildError) -> None:
    """Raises a clearer error if the compiler could not find a header that Shoal does not contain."""
    missing = re.search(r"fatal error: (\S+): No such file|'(\S+)' file not found", str(error))
    if missing is not None:
        header = missing.group(1) or missing.group(2)
        library = "box2d" if "box2d" in header else header.split("/")[0].removesuffix(".h")
        raise BuildError(
            f"{source.name} needs {header}, which is missing: install {library} and name its headers and "
            f'library in CC, such as CC="cc -I/path/include -L/path/lib -l{library}"\n{error}',
            **{name: fact for name, fact in vars(error).items() if not name.startswith("_")},
        ) from error


def writable_globals(library: Path) -> list[str]:
    """Returns the variables that all instances in a process share; an empty list also if there is no `nm`."""
    program = shutil.which("nm")
    if program is None:
        return []
    listed = subprocess.run([program, "-C", "-f", "sysv", str(library)], capture_output=True, text=True)
    found = []
    for line in listed.stdout.splitlines():
        name, _, kind, _, size, _, section = ([part.strip() for part in line.split("|")] + [""] * 7)[:7]
        own = name.startswith(("puffer_", "Py", "_", "completed.", "shoal_"))
        if section in (".data", ".bss") and size and kind and not own:
            found.append(_strip_name(name))
    return sorted(set(found))


def _strip_name(symbol: str) -> str:
    """Returns a variable's name without the number of a function's own and the instruction set (elf.py)."""
    plain = re.sub(r"( \[clone )?\.(avx2|avx512)\]?$", "", symbol)
    return re.sub(r"\.\d+$", "", plain)
