"""Segments: shared memory with a layout; it stays mapped while views exist, and the kernel frees it.

    Segment(layout)                  anonymous: no name, freed after its last user      (the default)
    Segment.named(layout, "run-7")   has a name that others can attach to while the owner runs
    Segment.file(layout, "ring.seg") a file, which remains

Creation: check limits, create without a name, reserve every byte, seal, map, write the header, publish.
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import reduction
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from shoal import _core
from shoal.errors import ClosedError, LayoutError, SegmentError, explain_os_errors
from shoal.memory import limits, names
from shoal.memory.allocate import (
    Handles,
    fill_holes,
    link_file,
    map_segment,
    reopen,
    reserve_anonymous,
    reserve_file,
)
from shoal.memory.header import HEADER_BYTES, read_header
from shoal.memory.layout import Layout
from shoal.memory.limits import format_bytes

__all__ = ["Segment"]

Kind: TypeAlias = Literal["anonymous", "named", "file"]


class Segment(Mapping[str, NDArray[Any]]):
    """Shared memory with named arrays: `segment["reward"]` is a NumPy view, the same object every time.

    >>> from shoal.memory import Layout, Segment
    >>> segment = Segment(Layout({"reward": (np.float64, (8,))}))
    >>> reward = segment["reward"]
    >>> reward[3] = 1.5                     # seen at once by every process that holds the segment
    >>> segment.close()
    >>> float(reward[3])                    # arrays stay valid
    1.5

    Other processes receive it by fork, as an argument under any `multiprocessing` start method, or through
    its queues and pipes: only the descriptor is sent, never the bytes. Arrays stay valid after `close()`.
    """

    _arrays: dict[str, NDArray[Any]] | None  # None once closed

    def __init__(self, layout: Layout, *, huge_pages: bool = False) -> None:
        """Creates an anonymous segment of zeros. `huge_pages` asks for 2 MB pages at once, where possible."""
        self._create(layout, "anonymous", huge_pages=huge_pages)

    @classmethod
    def published(cls, layout: Layout) -> Segment:
        """Creates an anonymous segment that only this mapping can write; send others `reader().fileno()`."""
        self = cls.__new__(cls)
        self._create(layout, "anonymous", huge_pages=False, published=True)
        return self

    @classmethod
    def named(cls, layout: Layout, name: str | None = None, *, huge_pages: bool = False) -> Segment:
        """Creates a segment that any process of this user can attach to by name; None: a name is chosen.

        The name is removed when this process closes the segment or ends. If the process is killed, the next
        process that asks for the name gets it, or `shoal clean` removes it.
        """
        self = cls.__new__(cls)
        if name is None:
            name = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._create(layout, "named", name=names.check_name(name), huge_pages=huge_pages)
        return self

    @classmethod
    def file(
        cls, layout: Layout, path: str | os.PathLike[str], *, huge_pages: bool | None = False
    ) -> Segment:
        """Creates a segment in a new file, which remains after `close()`.

        `huge_pages` as above; None: small pages, for a file that is synced often (a sync writes whole pages).
        """
        self = cls.__new__(cls)
        if "\0" in os.fspath(path):
            raise ValueError(f"a path must not contain NUL, got {os.fspath(path)!r}")
        self._create(layout, "file", path=Path(path).absolute(), huge_pages=huge_pages)
        return self

    @classmethod
    def attach(cls, name: str, layout: Layout | None = None, *, readonly: bool = False) -> Segment:
        """Opens a named segment. With `layout`, raises LayoutError unless the segment has that layout."""
        fd = names.open_named(name, not readonly)
        path = names.name_path(name)
        return cls._from_descriptor(fd, "named", f"named segment {name!r}", name, path, layout, readonly)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], layout: Layout | None = None, *, readonly: bool = False
    ) -> Segment:
        """Opens a file of `Segment.file`. With `layout`, raises LayoutError unless it has that layout."""
        path = Path(path).absolute()
        fd = names.open_existing(path, not readonly, f"segment file {str(path)!r}")
        return cls._from_descriptor(fd, "file", f"file {str(path)!r}", None, path, layout, readonly)

    @classmethod
    def from_fileno(cls, fd: int, *, readonly: bool = False) -> Segment:
        """Opens a descriptor that another process sent; the segment owns it from now on."""
        return cls._from_descriptor(fd, "anonymous", "segment received", None, None, None, readonly)

    def fileno(self) -> int:
        """Returns the descriptor, to be passed to another process."""
        self._open_arrays()
        return self._handles.fd

    def reader(self) -> Segment:
        """Returns a read-only handle on the same memory; its descriptor cannot be mapped for writing."""
        self._open_arrays()
        fd = reopen(self._handles.fd, False)
        return self._from_descriptor(fd, self.kind, repr(self), self.name, self.path, self.layout, True)

    # -- arrays ---------------------------------------------------------------------------------

    def __getitem__(self, field: str) -> NDArray[Any]:
        arrays = self._open_arrays()
        try:
            return arrays[field]
        except KeyError:
            raise KeyError(f"no field {field!r}; the layout has {list(arrays)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout)

    def __len__(self) -> int:
        return len(self.layout)

    def rows(self, field: str, count: int) -> NDArray[Any]:
        """Returns a new array over the first `count` rows of a field; its base is the mapping."""
        whole = self[field]
        if whole.ndim == 0 or not 0 <= count <= len(whole):
            raise ValueError(f"field {field!r} has shape {whole.shape}; asked for its first {count} rows")
        start: int = whole.__array_interface__["data"][0] - self._address
        buffer = cast(memoryview, whole.base)
        array: NDArray[Any] = np.ndarray((count, *whole.shape[1:]), whole.dtype, buffer, start)
        return array

    def shares_memory(self, array: NDArray[Any]) -> bool:
        """Whether `array` is a view of this segment's memory, through this handle."""
        start: int = array.__array_interface__["data"][0]
        return self._address <= start < self._address + self.size_bytes

    @property
    def mapping(self) -> _core.Mapping:
        """The mapping, which stays mapped as long as any array in it exists."""
        first = next(iter(self._open_arrays().values()))
        return cast(_core.Mapping, first.base)

    @property
    def huge_page_bytes(self) -> int:
        """The bytes of it that are on 2 MB pages in this process now; 0 if the system does not report it."""
        self._open_arrays()
        return limits.huge_page_bytes(self._address, self._address + self.size_bytes)

    # Comparing the arrays of two mappings is not useful, so a segment equals only itself.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    # -- closing --------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether this handle was closed."""
        return self._arrays is None

    def close(self) -> None:
        """Closes the descriptor and, in the owner, removes the name. Idempotent; arrays stay valid."""
        self._arrays = None
        self._finalizer()

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = {"anonymous": "", "named": f" {self.name!r}", "file": f" {str(self.path)!r}"}
        state = ", closed" if self.closed else ", read-only" if self.readonly else ""
        size = format_bytes(self.size_bytes)
        return f"<Segment {self.kind}{where[self.kind]}, {len(self.layout)} fields, {size}{state}>"

    # -- sending to other processes ---------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        # Only pickle itself calls this; multiprocessing's pickler uses the reducer registered below.
        from multiprocessing.context import get_spawning_popen

        if get_spawning_popen() is not None:  # another pickler inside Process.start()
            return _reduce(self)
        raise TypeError(
            "pickle cannot store a Segment, or a buffer in one, because it is shared memory. Pass it as an "
            "argument of multiprocessing.Process or through its queues and pipes (they send the descriptor), "
            "or give it a name or a path (Segment.named, Segment.file, ReplayBuffer(path=...)) and attach by "
            "that; to keep a buffer's rows, call save(directory)"
        )

    def __copy__(self) -> NoReturn:
        raise TypeError("a Segment cannot be copied; copy its arrays instead: segment[field].copy()")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    # -- construction ---------------------------------------------------------------------------

    def _create(
        self,
        layout: Layout,
        kind: Kind,
        *,
        name: str | None = None,
        path: Path | None = None,
        huge_pages: bool | None,
        published: bool = False,
    ) -> None:
        _require_layout(layout)
        page = os.sysconf("SC_PAGESIZE")
        data_offset = -(-(HEADER_BYTES + len(layout.schema)) // page) * page
        size = data_offset + -(-layout.size_bytes // page) * page
        handles = Handles(os.getpid())
        try:
            if kind == "anonymous":
                reserve_anonymous(handles, size, seal=not published)
            else:
                directory = names.name_directory() if path is None else str(path.parent)
                reserve_file(handles, size, directory, kind == "named")
            mapping = map_segment(handles.fd, size, True)
            with explain_os_errors("prepare the segment's memory", SegmentError):
                if published:  # after mapping it, because the seal forbids new writable mappings
                    _core.seal_writes(handles.fd)
                if huge_pages is not None:
                    mapping.huge_pages(huge_pages)
            mapping.publish(data_offset, layout.schema, layout.digest)
            if name is not None:
                path = handles.path = names.publish_name(handles.lock_fd, handles.temporary, name)
                handles.temporary = ""
            elif path is not None:
                link_file(handles, path)
            self._adopt(layout, kind, name, path, handles, mapping, data_offset, readonly=False)
        except BaseException:
            handles.release()
            raise

    @classmethod
    def _from_descriptor(
        cls,
        fd: int,
        kind: Kind,
        what: str,
        name: str | None,
        path: Path | None,
        layout: Layout | None,
        readonly: bool,
    ) -> Segment:
        """Checks and maps an open descriptor; the segment owns it from now on."""
        handles = Handles(os.getpid(), fd)
        try:
            if layout is not None:
                _require_layout(layout)
            found, size, data_offset = read_header(fd, what)
            if layout is not None and layout.digest != found.digest:
                raise LayoutError(
                    f"the {what} has another layout than expected: {layout.difference(found)}; pass the "
                    "layout with which it was made, or none"
                )
            if kind == "file" and not readonly:
                fill_holes(fd, size)
            mapping = map_segment(fd, size, not readonly)
            self = cls.__new__(cls)
            self._adopt(found, kind, name, path, handles, mapping, data_offset, readonly)
        except BaseException:
            handles.release()
            raise
        return self

    def _adopt(
        self,
        layout: Layout,
        kind: Kind,
        name: str | None,
        path: Path | None,
        handles: Handles,
        mapping: _core.Mapping,
        data_offset: int,
        readonly: bool,
    ) -> None:
        self.layout = layout
        self.kind: Kind = kind
        self.name = name
        self.path = path
        self.readonly = readonly
        self.size_bytes = mapping.size_bytes
        """The whole mapping: header, fields and padding."""
        self._address = mapping.address
        self._handles = handles
        # The base of each array is the mapping, which is unmapped when the last array is deleted.
        buffer = cast(memoryview, mapping)
        self._arrays = {
            field.name: np.ndarray(field.shape, field.dtype, buffer, data_offset + field.offset)
            for field in layout.values()
        }
        self._finalizer: Callable[[], Any] = weakref.finalize(self, handles.release)

    def _open_arrays(self) -> dict[str, NDArray[Any]]:
        if self._arrays is None:
            raise ClosedError(f"{self!r} is closed; arrays taken from it before are still valid")
        return self._arrays


def _require_layout(layout: object) -> None:
    if not isinstance(layout, Layout):
        raise TypeError(
            f"expected a Layout, got {type(layout).__name__}; make one with "
            'Layout({"reward": (np.float64, (8,))})'
        )


def _reduce(segment: Segment) -> tuple[Any, ...]:
    segment._open_arrays()
    return _rebuild, (
        reduction.DupFd(segment._handles.fd),
        segment.kind,
        segment.name,
        segment.path,
        segment.readonly,
    )


def _rebuild(duplicate: Any, kind: Kind, name: str | None, path: Path | None, readonly: bool) -> Segment:
    return Segment._from_descriptor(duplicate.detach(), kind, "segment received", name, path, None, readonly)


reduction.ForkingPickler.register(Segment, _reduce)
