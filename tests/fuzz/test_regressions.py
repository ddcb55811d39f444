"""What failing calls and fuzzing found, once each."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import CorruptFileError, SessionError
from shoal.memory import Layout, Segment
from shoal.replay import ReplayBuffer
from shoal.state.windows import decode
from shoal.vector import ProcessVectorEnv
from tests.fuzz.arguments import Small
from tests.fuzz.targets import TARGETS

FIELDS = {"x": (np.int64, ())}


def saved(directory: Path) -> Path:
    with ReplayBuffer(8, FIELDS, seed=0) as buffer:
        buffer.extend({"x": np.arange(5)})
        buffer.save(directory / "saved")
    return directory / "saved"


@pytest.mark.parametrize(
    "head",
    [
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (5,",
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999,), }",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (5,), }",
        b"(" * 400,
    ],
)
def test_an_array_file_that_lies_is_refused_before_memory_is_taken_for_it(tmp_path, head):
    place = saved(tmp_path)
    data = head.ljust(118, b" ") + b"\n"
    (place / "0.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(data)) + data + bytes(40))
    with pytest.raises(CorruptFileError, match="0.npy"):
        ReplayBuffer.load(place)


def test_a_manifest_that_is_not_text_or_too_deep_is_refused(tmp_path):
    place = saved(tmp_path)
    for written in (b"\xff\xfe{}", b"[" * 100_000, b'{"format": 1, "rows": ' + b"9" * 5000):
        (place / "manifest.json").write_bytes(written)
        with pytest.raises(CorruptFileError, match="saved"):
            ReplayBuffer.load(place)


@pytest.mark.parametrize("what", ["tail", "committed", "lap"])
def test_a_ring_that_counts_what_cannot_be_is_refused(tmp_path, what):
    """Pushes into it went to slots that nobody would ever read."""
    with ReplayBuffer(8, FIELDS, path=tmp_path / "a.ring") as buffer:
        buffer.extend({"x": np.arange(5)})
        segment = buffer._records.segment
        if what == "tail":
            segment["tail"][0] = 2**57
        elif what == "committed":
            segment["writers"][7, 0] = 2**63
        else:
            segment["rows"][3].view(np.uint64)[0] = 2**62 | 2
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CorruptFileError, match="count of pushed rows is impossibly large"):
        ReplayBuffer.open(tmp_path / "a.ring")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_no_ring_leaves_no_descriptor_open(tmp_path):
    with ReplayBuffer(8, FIELDS, path=tmp_path / "a.ring") as buffer:
        schema = bytes(buffer._records.segment["schema"])
        spoilt = schema.replace(b'"capacity": 8', b'"capacity": 9')
        buffer._records.segment["schema"][:] = np.frombuffer(spoilt, np.uint8)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(CorruptFileError):
            ReplayBuffer.open(tmp_path / "a.ring")
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_a_run_says_of_itself_may_be_nested_too_deeply():
    deep = b'{"num_worlds": 4, "env": ' + b"[" * 60_000
    with pytest.raises(SessionError, match="facts cannot be read"):
        TARGETS["session"].run(struct.pack("<H", len(deep)) + deep)
    head = b"[" * 60_000
    with pytest.raises(SessionError, match="snapshot cannot be read"):
        decode([0] * 5, bytearray(len(head).to_bytes(8, "little") + head))


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "1e30"])
def test_a_number_of_json_need_not_fit_any_integer(number):
    entry = f'"name": "x", "part": "world", "dtype": "<f4", "shape": [{number}]'
    head = f'[{{{entry}, "role": "", "columns": [], "categories": [], "stable": false}}]'.encode()
    with pytest.raises(SessionError, match="snapshot cannot be read"):
        decode([0] * 5, bytearray(len(head).to_bytes(8, "little") + head))


@pytest.mark.parametrize(
    "dtype", ["f4,,", "<f4,(", ",", "O", "V8", "M8[s]", "i4, i4", 3, None, [["a", "<f4"]]]
)
def test_a_dtype_from_outside_is_a_plain_name_and_never_evaluated(dtype, tmp_path):
    entry = {"name": "x", "part": "world", "dtype": dtype, "shape": [1], "role": "", "columns": []}
    head = json.dumps([{**entry, "categories": [], "stable": 0}]).encode()
    with pytest.raises(SessionError, match="is not a dtype"):
        decode([0] * 5, bytearray(len(head).to_bytes(8, "little") + head + bytes(100)))
    manifest = json.loads((saved(tmp_path) / "manifest.json").read_text())
    manifest["fields"][0][1] = dtype
    (tmp_path / "saved" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CorruptFileError, match="is not a dtype"):
        ReplayBuffer.load(tmp_path / "saved")


def test_a_list_of_numbers_that_only_uint64_holds_is_stored():
    """NumPy makes such a list an array of another name for the same type."""
    with ReplayBuffer(4, {"x": (np.uint64, ())}) as buffer:
        buffer.extend({"x": [2**64 - 1, 2**63]})
        assert buffer.latest(2)["x"].tolist() == [2**64 - 1, 2**63]


def test_a_layout_that_is_none_is_a_type_error(tmp_path):
    Segment.file(Layout({"a": (np.uint8, (3,))}), tmp_path / "a.seg").close()
    for wrong in (3.5, {"a": (np.uint8, (3,))}, "a"):
        with pytest.raises(TypeError, match="expected a Layout"):
            Segment.open(tmp_path / "a.seg", wrong)


def test_caller_steps_may_be_numpys_true_and_is_nothing_else():
    """A worker was told with it whether cores are crowded, and died of its type."""
    with pytest.raises(TypeError, match="caller_steps must be one of True, False, .auto., got int: 3"):
        ProcessVectorEnv([Small] * 2, caller_steps=3)
    envs = ProcessVectorEnv([Small] * 2, num_workers=1, caller_steps=np.True_, context="fork", session=None)
    try:
        envs.reset(seed=0)
        assert envs.step(np.zeros(2, np.int64))[0].shape == (2, 2)
    finally:
        envs.close()


def test_a_run_without_descriptors_does_not_spin_on_those_who_want_to_look(run_python):
    """A connection that could not be accepted stayed in the queue: the host asked for it again and again."""
    told = json.loads(
        run_python("""
import json, os, resource, socket, time
import numpy as np, shoal
envs = shoal.make_vec("CartPole-v1", 4, session="crowded")
envs.reset(seed=0)
channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
channel.connect(envs._hosted.address)
begin = time.process_time()
time.sleep(1)
used = time.process_time() - begin
for fd in taken:
    os.close(fd)
channel.close()
with shoal.attach("crowded") as session:  # it is heard again
    steps = session.counters()["steps"]
envs.close()
print(json.dumps([used, steps]))
""")
    )
    assert told[0] < 0.05 and told[1] == 0  # seconds of a second, of which others may have most
