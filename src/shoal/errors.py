"""Every exception class that Shoal defines, as one tree.

Shoal also raises built-in exceptions, such as TypeError and ValueError for wrong arguments, and Gymnasium's.

ShoalError
|-- LayoutError            fields that cannot be laid out, or two layouts that differ
|-- ClosedError            use after close()
|-- ForkedError            use in a forked child of the process that made it
|-- PluginError            a C environment that cannot be loaded, described or started
|   `-- BuildError         a C environment that cannot be compiled
|-- WorkerError            worker processes that cannot be started, or cannot receive what was sent
|   `-- WorkerDied         a worker process ended by itself or was killed
|       `-- WorkerTimeout  a worker process was too slow, and was killed
|-- SessionError           a run that cannot be watched, or has ended
|-- SpaceError             a value that does not fit its space (also a ValueError)
|   |-- SpaceKeyError      a missing key, an unknown character (also a KeyError)
|   `-- SpaceIndexError    an index or a length out of range (also an IndexError)
`-- SegmentError           shared memory that cannot be created or opened
    |-- NoRoomError        a memory limit (cgroup, rlimit, RAM) is smaller than the segment
    |   |-- ShmFullError   the tmpfs of named segments is full
    |   `-- DiskFullError  the file system of a file segment is full
    |-- NameInUse          the name or path is taken
    |-- SegmentNotFound    nothing has that name or path
    |-- CorruptFileError   not a segment, truncated, or damaged
    `-- VersionError       a segment of another format or byte order
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gymnasium.error import ClosedEnvironmentError

__all__ = [
    "BuildError",
    "ClosedError",
    "CorruptFileError",
    "DiskFullError",
    "ForkedError",
    "LayoutError",
    "NameInUse",
    "NoRoomError",
    "PluginError",
    "SegmentError",
    "SegmentNotFound",
    "SessionError",
    "ShmFullError",
    "ShoalError",
    "SpaceError",
    "SpaceIndexError",
    "SpaceKeyError",
    "VersionError",
    "WorkerDied",
    "WorkerError",
    "WorkerTimeout",
]


def _rebuild(kind: type[ShoalError], message: str, facts: dict[str, Any]) -> ShoalError:
    return kind(message, **facts)


class ShoalError(Exception):
    """Base class of all Shoal errors: a message, and the facts behind it as attributes.

    >>> try:
    ...     shoal.Segment.attach("nobody-has-this-name")
    ... except shoal.ShoalError as error:
    ...     print(type(error).__name__)
    SegmentNotFound
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self._facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return str(self.args[0])

    # Errors are pickled between processes, and the default would lose the facts.
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args[0], self._facts)


class LayoutError(ShoalError, ValueError):
    """Fields that cannot be laid out, or a segment whose layout is not the expected one.

    >>> shoal.Layout({"name": (object, (8,))})
    Traceback (most recent call last):
    shoal.errors.LayoutError: field 'name': dtype object cannot be stored in shared memory; ...
    """


class ClosedError(ShoalError, ClosedEnvironmentError, ValueError):
    """The object was closed. Arrays taken from it before stay valid.

    >>> envs = shoal.make_vec("CartPole-v1", 4)
    >>> envs.close()
    >>> envs.reset()
    Traceback (most recent call last):
    shoal.errors.ClosedError: after a call to `close()` the environments cannot be used; ...
    """


class ForkedError(ShoalError, RuntimeError):
    """The environments belong to the parent of a forked process: the child must make its own.

    >>> raise ForkedError("these environments were made by the parent process")
    Traceback (most recent call last):
    shoal.errors.ForkedError: these environments were made by the parent process
    """


class PluginError(ShoalError):
    """A plug-in is not a Shoal environment, has another ABI version, or rejected its options.

    >>> shoal.make_vec("Squared-v0", size=4)
    Traceback (most recent call last):
    shoal.errors.PluginError: Squared-v0: size must be odd, from 3 to 255
    """


class BuildError(PluginError):
    """The compiler is missing or failed; the message contains the compiler's own.

    >>> shoal.make_vec("no_such_env.c")
    Traceback (most recent call last):
    shoal.errors.BuildError: there is no file ...no_such_env.c; ...
    """


class WorkerError(ShoalError, RuntimeError):
    """A worker process cannot be started, or an object cannot be sent to it.

    >>> import threading
    >>> lock = threading.Lock()
    >>> shoal.vector.ProcessVectorEnv([lambda: lock])
    Traceback (most recent call last):
    shoal.errors.WorkerError: env_fns[0], ..., cannot be sent to a worker process: cannot pickle ...
    """


class WorkerDied(WorkerError):
    """A worker process is dead, and the environments in it are lost.

    >>> import os, signal
    >>> envs = shoal.make_vec("FrozenLake-v1", 4, num_workers=2)
    >>> _ = envs.reset(seed=0)
    >>> os.kill(envs.worker_pids[1], signal.SIGKILL)
    >>> try:
    ...     while True:
    ...         _ = envs.step(envs.action_space.sample())
    ... except WorkerDied as error:
    ...     print(error.env_ids, error.signal == signal.SIGKILL)
    [2, 3] True
    >>> envs.close()
    """

    env_ids: list[int]
    pid: int
    signal: int | None
    exitcode: int | None
    stderr: str
    summary: str


class WorkerTimeout(WorkerDied, TimeoutError):
    """A worker process took longer than its time limit and was killed.

    >>> import time
    >>> class Slow(gymnasium.Env):
    ...     observation_space = action_space = gymnasium.spaces.Discrete(2)
    ...     def reset(self, *, seed=None, options=None):
    ...         return 0, {}
    ...     def step(self, action):
    ...         time.sleep(60)
    >>> envs = shoal.make_vec(Slow, step_timeout_s=0.2)
    >>> _ = envs.reset()
    >>> try:
    ...     envs.step([0])
    ... except TimeoutError as error:
    ...     print(type(error).__name__, error.env_ids)
    WorkerTimeout [0]
    >>> envs.close()
    """


class SessionError(ShoalError):
    """There is no such run, it may not be watched, or it has ended.

    >>> shoal.attach("nobody-has-this-name")
    Traceback (most recent call last):
    shoal.errors.SessionError: no session in ... is called 'nobody-has-this-name'; live sessions: ...
    """


class SpaceError(ShoalError, ValueError):
    """A value does not fit its space. Nothing was written.

    >>> buffer = shoal.ReplayBuffer(10, {"x": (np.float32, (2,))})
    >>> buffer.push({"x": [1, 2, 3]})
    Traceback (most recent call last):
    shoal.errors.SpaceError: field 'x': expected rows of shape (2,) in an array ...
    >>> buffer.close()
    """


class SpaceKeyError(SpaceError, KeyError):
    """A key is missing from a Dict value, or a character from a Text's charset.

    >>> buffer = shoal.ReplayBuffer(10, {"x": (np.float32, ())})
    >>> buffer.push({"y": 1.0})
    Traceback (most recent call last):
    shoal.errors.SpaceKeyError: expected the keys ['x'], found ['y']; nothing stored
    >>> buffer.close()
    """


class SpaceIndexError(SpaceError, IndexError):
    """An environment index, a OneOf index or a length is out of range.

    >>> space = gymnasium.spaces.Text(3)
    >>> memory = shoal.spaces.create_shared_memory(space, 1)
    >>> shoal.spaces.write_to_shared_memory(space, 0, "four", memory)
    Traceback (most recent call last):
    shoal.errors.SpaceIndexError: value: expected at most 3 characters, found 4: 'four'
    """


class SegmentError(ShoalError):
    """A segment could not be created or opened.

    >>> shoal.Segment.file(shoal.Layout({"x": (np.float32, (8,))}), "/no/such/place/x.seg")
    Traceback (most recent call last):
    shoal.errors.SegmentError: ...
    """


class NoRoomError(SegmentError, MemoryError):
    """A limit is smaller than the segment. Limits are checked before anything is allocated.

    >>> try:
    ...     shoal.Segment(shoal.Layout({"x": (np.uint8, (2**50,))}))
    ... except MemoryError as error:
    ...     print(type(error).__name__, error.need_bytes > error.free_bytes)
    NoRoomError True
    """

    need_bytes: int
    free_bytes: int


class ShmFullError(NoRoomError):
    """The file system that holds named segments has too little space.

    >>> issubclass(ShmFullError, NoRoomError) and issubclass(ShmFullError, MemoryError)
    True
    """


class DiskFullError(NoRoomError):
    """The file system of a file segment has too little space.

    >>> issubclass(DiskFullError, NoRoomError) and issubclass(DiskFullError, MemoryError)
    True
    """


class NameInUse(SegmentError, FileExistsError):
    """The name belongs to a living owner, or the path exists.

    >>> import os
    >>> layout = shoal.Layout({"x": (np.float32, (8,))})
    >>> with shoal.Segment.named(layout) as segment:
    ...     try:
    ...         shoal.Segment.named(layout, segment.name)
    ...     except FileExistsError as error:
    ...         print(type(error).__name__, error.pid == os.getpid())
    NameInUse True
    """

    pid: int | None


class SegmentNotFound(SegmentError, FileNotFoundError):
    """No segment has that name or path.

    >>> shoal.Segment.attach("nobody-has-this-name")
    Traceback (most recent call last):
    shoal.errors.SegmentNotFound: there is no named segment 'nobody-has-this-name'; ...
    """


class CorruptFileError(SegmentError):
    """The file is not a segment, or is incomplete.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(bytes(4096)), file.flush()
    ...     shoal.Segment.open(file.name)
    Traceback (most recent call last):
    shoal.errors.CorruptFileError: the file ... is not a Shoal segment: ...
    """


class VersionError(SegmentError):
    """The segment was written in a format this version of Shoal does not read.

    >>> error = VersionError("written by another format", found=2, expected=1)
    >>> error.found, error.expected
    (2, 1)
    """

    found: int
    expected: int


UNREADABLE = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,  # 1e999 is valid JSON
    RecursionError,
)
"""The exceptions that parsing untrusted JSON can raise."""


@contextmanager
def explain_os_errors(action: str, kind: type[ShoalError] | None = None, advice: str = "") -> Iterator[None]:
    """Raises an OSError of its block as `kind` (None: OSError) with the text "cannot ACTION: why; ADVICE"."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ShoalError):
            raise
        message = f"cannot {action}: {error.strerror or error}"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            advice = "raise the limit on open files with `ulimit -n`"
        if advice:
            message += f"; {advice}"
        if kind is None:
            raise OSError(error.errno, message) from error
        raise kind(message) from error
