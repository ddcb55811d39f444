"""Writers of a replay ring are killed at random times: no torn row, no lost one, nobody waits."""

import os
import random
import signal
import struct
import time

import numpy as np
import pytest

from shoal import ReplayBuffer

WORDS = 512  # long rows: a kill often falls into the copy
ACKNOWLEDGED = struct.Struct("=QQ")


KILLS = int(os.environ.get("SHOAL_KILLS", "60"))  # for each capacity; 7000 make a long run


def push_for_ever(buffer, name, pipe):
    number = 0
    while True:
        numbers = name << 32 | np.arange(number, number + 1 + number % 3, dtype=np.uint64)
        ids = buffer.extend({"words": np.repeat(numbers[:, None], WORDS, axis=1)})  # one row, or several
        os.write(pipe, ACKNOWLEDGED.pack(ids[-1], numbers[-1]))
        number += len(numbers)


def start_writer(buffer, name):
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reads)
            push_for_ever(buffer, name, writes)
        finally:
            os._exit(1)
    os.close(writes)
    return pid, reads


def last_acknowledged(pipe):
    """The last push that returned in a writer that is dead."""
    data, last = b"", None
    while part := os.read(pipe, 1 << 16):
        data += part
    os.close(pipe)
    if len(data) >= ACKNOWLEDGED.size:
        whole = len(data) // ACKNOWLEDGED.size * ACKNOWLEDGED.size
        last = ACKNOWLEDGED.unpack_from(data, whole - ACKNOWLEDGED.size)
    return last


def check_whole(batch):
    words = batch["words"]
    assert (words == words[:, :1]).all()
    return words[:, 0]


def drain(pipe):
    """Keeps a writer's pipe from filling up."""
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, 1 << 20)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize("capacity", [3, 8, 200])
def test_a_killed_writer_costs_at_most_the_row_it_was_writing(capacity):
    chooser = random.Random(capacity)
    with ReplayBuffer(capacity, {"words": (np.uint64, (WORDS,))}, seed=0) as buffer:
        buffer.push({"words": np.zeros(WORDS, np.uint64)})
        steady, pipe = start_writer(buffer, 1)
        try:
            for name in range(2, 2 + KILLS):
                pid, acknowledgements = start_writer(buffer, name)
                time.sleep(chooser.random() * 0.004)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                last = last_acknowledged(acknowledgements)
                tail = buffer.total_pushed
                check_whole(buffer.sample(16))
                check_whole(buffer.latest(capacity))
                if last is not None:
                    found = buffer.fetch([last[0]])
                    # there, or overwritten: the ticket after it for its slot was taken
                    taken = int(buffer._records.segment["tail"][0])
                    assert len(found.ids) == 1 or taken > last[0] + capacity
                    if len(found.ids):
                        assert check_whole(found)[0] == last[1]
                drain(pipe)
                before = buffer.total_pushed
                deadline = time.monotonic() + 10
                while buffer.total_pushed <= before:  # the other writer goes on
                    drain(pipe)
                    assert time.monotonic() < deadline, tail
        finally:
            os.kill(steady, signal.SIGKILL)
            os.waitpid(steady, 0)
            os.close(pipe)
        # Nobody writes any more: what the dead left unfinished is taken by whoever comes next.
        for number in range(capacity):
            buffer.push({"words": np.full(WORDS, number, np.uint64)})
        assert sorted(check_whole(buffer.latest(capacity)).tolist()) == list(range(capacity))


def test_a_stopped_writer_is_passed_by_for_more_than_a_lap():
    with ReplayBuffer(4, {"words": (np.uint64, (WORDS,))}, seed=0) as buffer:
        pid, pipe = start_writer(buffer, 1)
        try:
            for _ in range(40):
                time.sleep(0.002)
                os.kill(pid, signal.SIGSTOP)
                os.waitpid(pid, os.WUNTRACED)
                for number in range(12):  # three laps
                    buffer.push({"words": np.full(WORDS, number, np.uint64)})
                    check_whole(buffer.sample(4))
                drain(pipe)
                os.kill(pid, signal.SIGCONT)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pipe)
        check_whole(buffer.latest(4))


def test_a_file_of_killed_writers_is_opened_with_what_they_acknowledged(tmp_path):
    path = tmp_path / "ring.seg"
    buffer = ReplayBuffer(5000, {"words": (np.uint64, (WORDS,))}, path=path)
    writers = [start_writer(buffer, name) for name in (1, 2)]
    buffer.close()
    time.sleep(0.05)
    for pid, _ in writers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with ReplayBuffer.open(path) as again:
        check_whole(again.latest(5000))
        for _, pipe in writers:
            last = last_acknowledged(pipe)
            assert last is not None
            newest = int(again.latest(1).ids[0])
            found = again.fetch([last[0]])
            assert len(found.ids) == 1 or newest >= last[0] + 5000
        first = again.push({"words": np.zeros(WORDS, np.uint64)})
        assert first > newest  # ids go on
