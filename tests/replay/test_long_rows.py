"""Rows so long that several threads copy a batch: the same draws and whole rows."""

import os
import threading

import numpy as np
import pytest

from shoal import ReplayBuffer
from shoal.errors import ClosedError

WIDTH = 50_000
FIELDS = {"obs": (np.uint8, (WIDTH,)), "number": (np.int64, ())}


def rows(numbers):
    numbers = np.asarray(numbers)
    whole = np.repeat((numbers % 251).astype(np.uint8)[:, None], WIDTH, axis=1)
    return {"obs": whole, "number": numbers}


def assert_whole(batch):
    assert (batch["obs"] == (batch["number"] % 251).astype(np.uint8)[:, None]).all()


@pytest.fixture
def buffer():
    with ReplayBuffer(40, FIELDS, seed=3) as buffer:
        buffer.extend(rows(np.arange(100)))
        yield buffer


def test_batches_copied_by_several_threads_are_the_same_as_by_one(buffer):
    """Small batches (one thread) and large ones (several threads) have the same draws."""
    long = buffer.sample(200)
    assert long["obs"].nbytes > 1 << 20
    buffer.seed(3)
    short = buffer.sample(10)
    assert short["obs"].nbytes < 1 << 20
    assert long.ids[:10].tolist() == short.ids.tolist()
    assert_whole(long)
    assert (long["number"] == long.ids).all() and set(long.ids.tolist()) == set(range(60, 100))


def test_several_threads_sample_while_one_pushes(buffer):
    stop, failures = threading.Event(), []

    def draw():
        try:
            while not stop.is_set():
                batch = buffer.sample(64)
                assert_whole(batch)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    for first in range(100, 600, 5):
        buffer.extend(rows(np.arange(first, first + 5)))
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_closing_while_another_thread_samples_raises_only_there():
    for _ in range(20):
        buffer = ReplayBuffer(40, FIELDS)
        buffer.extend(rows(np.arange(40)))
        ended = []

        def draw(buffer=buffer, ended=ended):
            with pytest.raises(ClosedError):
                while True:
                    assert_whole(buffer.sample(64))
            ended.append(True)

        thread = threading.Thread(target=draw)
        thread.start()
        buffer.sample(64)
        buffer.close()
        thread.join()
        assert ended == [True]


def test_forked_child_has_its_own_copy_threads(buffer):
    buffer.sample(64)  # the parent's threads exist
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert_whole(buffer.sample(64))
            buffer.push({name: array[0] for name, array in rows([7]).items()})
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert buffer.latest(1)["number"].tolist() == [7]
    assert_whole(buffer.sample(64))
