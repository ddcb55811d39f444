"""The leak check of `shoal chaos` finds each kind of resource that is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from shoal_lab.chaos.marked import Violation
from shoal_lab.chaos.resources import Resources, list_children


def test_nothing_left_behind_is_no_violation():
    Resources().require_same("nothing", timeout_s=0.0)


def test_a_child_process_left_behind_is_found():
    before = Resources()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert child.pid in list_children(os.getpid())
        with pytest.raises(Violation, match=r"a child leaked: .*child: \d+ before, \d+ after"):
            before.require_same("a child", timeout_s=0.0)
    finally:
        child.kill()
        child.wait()
    assert child.pid not in list_children(os.getpid())


def test_a_descriptor_left_open_is_found():
    before = Resources()
    reads, writes = os.pipe()
    try:
        with pytest.raises(Violation, match="a pipe leaked: descriptor pipe"):
            before.require_same("a pipe", timeout_s=0.0)
    finally:
        os.close(reads)
        os.close(writes)


def test_a_thread_left_running_is_found():
    before, end = Resources(), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        with pytest.raises(Violation, match="a thread leaked: thread"):
            before.require_same("a thread", timeout_s=0.0)
    finally:
        end.set()
        thread.join()


def test_a_child_that_ends_meanwhile_is_not_a_leak():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    before = Resources()
    child.kill()
    child.wait()
    before.require_same("nothing", timeout_s=0.0)
