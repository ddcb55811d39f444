"""One call at a time: calls from a second thread or a callback raise, close() waits, results never mix."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.errors import ClosedError, ForkedError, ShoalError
from tests.vector.latched import BACKENDS, Caller, Gatekept, make

IN_C = [backend for backend in BACKENDS if "Python" not in backend and backend != "caller_steps"]
IN_PROCESSES = ["C in workers", "Python in workers", "caller_steps"]


def calls(envs):
    """Every public call of a synchronous vector environment but close, by the name that errors use."""
    zeros = np.zeros(envs.num_envs, np.int64)
    rollout = envs.rollout(8)
    rollout.start(envs.reset(seed=0)[0])
    known = {
        "step": lambda: envs.step(zeros),
        "reset": envs.reset,
        "rollout.start": lambda: rollout.start(np.zeros((envs.num_envs, 3))),
        "rollout.step": lambda: rollout.step(zeros),
    }
    if isinstance(envs, shoal.vector.ProcessVectorEnv):
        known |= {
            "step_async": lambda: envs.step_async(zeros),
            "step_wait": envs.step_wait,
            "reset_async": envs.reset_async,
            "reset_wait": envs.reset_wait,
            "call": lambda: envs.call("render"),
            "call_async": lambda: envs.call_async("render"),
            "call_wait": envs.call_wait,
            "get_attr": lambda: envs.get_attr("spec"),
            "set_attr": lambda: envs.set_attr("x", 1),
            "render": envs.render,
            "rollout": lambda: envs.rollout(4),
        }
    if envs.has_extension("shoal.checkpoint/1"):
        saved = envs.save_env(0)
        known |= {
            "save_env": lambda: envs.save_env(0),
            "restore_env": lambda: envs.restore_env(0, saved),
        }
    return known


def wait_until_inside(envs):
    """Returns when another thread is inside a call."""
    while True:
        try:
            envs.save_env(0)
        except ShoalError as error:  # Python environments cannot be saved at all, nor those under way
            if "another thread is inside" in str(error):
                return
        time.sleep(0.001)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_thread_is_refused_at_once_and_changes_nothing(backend):
    with make(backend) as envs:
        known = calls(envs)
        for count in range(1, 3):
            actions = Gatekept([5, 6, 7, 8])
            stepping = Caller(lambda actions=actions: envs.step(actions))
            assert actions.inside.wait(60)
            for name, call in known.items():
                with pytest.raises(ShoalError, match="another thread is inside step.. of this env") as caught:
                    call()
                assert f"{name}() did nothing" in str(caught.value)
            with pytest.raises(ShoalError, match="another thread uses these environments.* use shoal.attach"):
                envs.state(0)
            assert envs.stats["steps"] == 4 * (count - 1)  # reading what was counted is always allowed
            actions.go.set()
            observations, rewards, *_ = stepping.result()
            assert observations[:, 0].tolist() == rewards.tolist() == [count] * 4
            assert observations[:, 1].tolist() == [5, 6, 7, 8]
        for name in known:
            if not name.endswith(("_async", "_wait", "call", "render", "attr", "step")):
                known[name]()  # from one thread at a time, everything is allowed


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_from_inside_a_call_are_refused(backend):
    with make(backend) as envs:
        for name, call in {**calls(envs), "close": envs.close}.items():
            with pytest.raises(ShoalError, match=f"{name}.. was called from inside step.. of this env"):
                envs.step(Gatekept([0] * 4, meanwhile=call))
        assert envs.stats["steps"] == 0
        actions = Gatekept([1, 2, 3, 4])
        actions.go.set()
        assert envs.step(actions)[0][:, :2].tolist() == [[1, 1 + env] for env in range(4)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_waits_for_the_running_call_which_raises(backend):
    envs = make(backend)
    observations, _ = envs.reset(seed=0)
    before = observations.copy()
    actions = Gatekept([0] * 4)
    stepping = Caller(lambda: envs.step(actions))
    assert actions.inside.wait(60)
    closing = Caller(envs.close)
    while True:  # the closer is there when calls are refused as closed
        try:
            envs.reset()
        except ClosedError:
            break
        except ShoalError:
            time.sleep(0.001)
    assert closing.is_alive()  # it waits
    actions.go.set()
    with pytest.raises(ClosedError, match="after a call to `close"):
        stepping.result()
    closing.result()
    assert envs.closed and np.array_equal(observations, before)
    envs.close()


@pytest.mark.parametrize("backend", IN_C)
def test_close_while_a_step_is_in_c(backend, tmp_path):
    latch = tmp_path / "latch"
    envs = make(backend, file=latch, sleep_us=50)
    envs.reset(seed=0)
    kept = [envs.step(np.zeros(4, np.int64)) for _ in range(3)]  # after which it knows that a step is slow
    latch.touch()
    stepping = Caller(lambda: envs.step(np.zeros(4, np.int64)))
    closing = threading.Timer(0.1, envs.close)
    closing.start()
    if backend in (
        "native",
        "native, 2 threads",
        "emulated",
    ):  # nothing can end a function in C but itself; a worker is killed
        release = threading.Timer(0.3, latch.unlink)
        release.start()
    with pytest.raises(ClosedError):
        stepping.result()
    closing.join(60)
    assert envs.closed and [step[0][0, 0] for step in kept] == [1, 2, 3]


def test_close_while_the_caller_steps_its_chunk(tmp_path):
    """caller_steps: nothing can end the caller's own step; a worker that close() killed is no WorkerDied."""
    latch = tmp_path / "latch"
    envs = make("caller_steps", 2, file=latch, num_workers=1)
    envs.reset(seed=0)
    latch.touch()
    stepping = Caller(lambda: envs.step([0, 0]))
    wait_until_inside(envs)
    (pid,) = envs.worker_pids
    closing = Caller(lambda: envs.close(timeout=0.1))
    while is_alive(pid):
        time.sleep(0.01)  # until close() has killed it
    latch.unlink()
    with pytest.raises(ClosedError):
        stepping.result()
    closing.result()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("backend", ["Python in workers", "C in workers"])
def test_close_ends_a_wait_for_a_worker_that_hangs(backend, tmp_path):
    latch = tmp_path / "latch"
    latch.touch()
    envs = make(backend, file=latch)
    envs.reset(seed=0)
    stepping = Caller(lambda: envs.step(np.zeros(4, np.int64)))
    wait_until_inside(envs)
    envs.close(timeout=0.2)
    with pytest.raises(ClosedError):
        stepping.result()
    assert envs.worker_pids == [None, None]


@pytest.mark.parametrize("backend", ["native", "Python in workers"])
def test_close_ends_a_recv_that_waits(backend, tmp_path):
    latch = tmp_path / "latch"
    envs = make(backend, 4, file=latch, batch_size=4)
    envs.async_reset(seed=0)
    ids = envs.recv()[4]["env_id"].copy()
    latch.touch()
    envs.send(np.zeros(4, np.int64), ids)
    receiving = Caller(envs.recv)
    wait_until_inside(envs)
    release = threading.Timer(0.3, latch.unlink)
    release.start()
    envs.close()
    with pytest.raises(ClosedError):
        receiving.result()
    release.join()


@pytest.mark.parametrize("backend", ["native", "Python in workers"])
def test_send_and_recv_of_two_threads_are_never_mixed(backend):
    with make(backend, 8, batch_size=4) as envs:
        envs.async_reset(seed=0)
        actions = Gatekept([1, 2, 3, 4])
        ids = envs.recv()[4]["env_id"].copy()
        sending = Caller(lambda: envs.send(actions, ids))
        assert actions.inside.wait(60)
        for call in (envs.recv, lambda: envs.send([0] * 4, ids), envs.async_reset):
            with pytest.raises(ShoalError, match="another thread is inside send"):
                call()
        actions.go.set()
        sending.result()
        seen = {}
        for _ in range(2):
            observations, *_, info = envs.recv()
            seen |= dict(zip(info["env_id"].tolist(), observations[:, 1].tolist(), strict=True))
        assert [seen[env] for env in ids.tolist()] == [1, 2, 3, 4]
        for call in (lambda: envs.recv(), lambda: envs.close(), lambda: envs.async_reset()):
            with pytest.raises(ShoalError, match="was called from inside send"):
                envs.send(Gatekept([0] * 4, meanwhile=call), ids)
        envs.send([0] * 4, ids)  # what was refused was not sent
        envs.recv()


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_that_step_at_random_get_their_own_results_or_an_error(backend):
    rounds, done, wrong = 60, [], []
    with make(backend, sleep_us=30) as envs:
        envs.reset(seed=0)
        begin = threading.Barrier(3)

        def work(mine):
            kept, count = [], 0
            begin.wait()
            while count < rounds:
                try:
                    results = envs.step(np.full(4, mine))
                except ShoalError as error:
                    assert "another thread is inside" in str(error)
                    continue
                count += 1
                kept.append((results, results[0].copy()))
                done.append(results[0][0, 0])
                if not (results[0][:, 1] == mine).all() or results[1].tolist() != [results[0][0, 0]] * 4:
                    wrong.append(results)
                del kept[:-5]
                wrong.extend(now for now, then in kept if not np.array_equal(now[0], then))

        threads = [Caller(lambda mine=mine: work(mine)) for mine in (11, 22, 33)]
        for thread in threads:
            thread.result()
        assert not wrong
        assert sorted(done) == list(range(1, 3 * rounds + 1))  # every step was somebody's, and only one's


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_number_of_threads_may_close(backend):
    envs = make(backend)
    envs.reset(seed=0)
    begin = threading.Barrier(4)

    def close():
        begin.wait()
        envs.close()
        return envs.closed

    assert all(closer.result() for closer in [Caller(close) for _ in range(4)])


def test_ctrl_c_ends_a_close_that_waits_and_it_can_be_called_again():
    envs = make("native")
    envs.reset(seed=0)
    actions = Gatekept([0] * 4)
    stepping = Caller(lambda: envs.step(actions))
    assert actions.inside.wait(60)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        envs.close()
    assert not envs.closed
    actions.go.set()
    with pytest.raises(ClosedError):
        stepping.result()
    envs.close()
    assert envs.closed


@pytest.mark.parametrize("backend", ["native", "Python in workers"])
def test_close_in_a_signal_handler_raises(backend, tmp_path):
    latch = tmp_path / "latch"
    envs = make(backend, 1, file=latch, batch_size=1, **({} if backend == "native" else {"num_workers": 1}))
    envs.async_reset(seed=0)
    envs.recv()
    latch.touch()
    envs.send([0], [0])
    before = signal.signal(signal.SIGUSR1, lambda *_: envs.close())
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(ShoalError, match="close.. was called from inside recv.. .* signal handler"):
            envs.recv()
    finally:
        signal.signal(signal.SIGUSR1, before)
        latch.unlink()
    envs.recv()
    envs.close()


@pytest.mark.parametrize("backend", ["native", "C in workers", "Python in workers"])
def test_child_forked_during_a_call_does_not_block(backend):
    envs = make(backend)
    envs.reset(seed=0)
    actions = Gatekept([0] * 4)
    stepping = Caller(lambda: envs.step(actions))
    assert actions.inside.wait(60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                envs.step([0] * 4)
            except ForkedError:
                envs.close()
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    actions.go.set()
    stepping.result()
    envs.close()


@pytest.mark.parametrize("backend", ["C in workers", "Python in workers"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError, ArithmeticError])
def test_next_call_works_after_a_signal_handler_raised(backend, kind, tmp_path):
    latch = tmp_path / "latch"

    def handle(*_):
        raise kind("from the handler")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with make(backend, file=latch) as envs:
            for count in range(1, 3):
                envs.reset(seed=0)
                latch.touch()
                timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
                timer.start()
                with pytest.raises(kind, match="from the handler"):
                    envs.step([0] * 4)
                latch.unlink()
                assert envs.step([count] * 4)[0][:, :2].tolist() == [[2, count]] * 4
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("backend", ["Python in workers", "caller_steps"])
def test_action_that_cannot_be_pickled_steps_nothing(backend):
    with make(backend) as envs:
        envs.reset(seed=0)
        with pytest.raises(TypeError, match="pickle"):
            envs.step([0, 0, 0, threading.Lock()])
        assert envs.stats["steps"] == 0
        assert envs.step([0] * 4)[0][:, 0].tolist() == [1] * 4
        with pytest.raises(TypeError, match="pickle"):
            envs.reset(options={"lock": threading.Lock()})
        assert envs.step([0] * 4)[0][:, 0].tolist() == [2] * 4


@pytest.mark.parametrize("backend", ["C in workers", "Python in workers"])
def test_ctrl_c_while_descriptors_are_sent_never_makes_a_later_call_hang(backend, monkeypatch):
    import socket

    def interrupt(*_):
        raise KeyboardInterrupt

    with make(backend) as envs:
        envs.reset(seed=0)
        with monkeypatch.context() as patched:
            patched.setattr(socket, "send_fds", interrupt)
            with pytest.raises(KeyboardInterrupt):
                envs.rollout(3)
        with pytest.raises(shoal.errors.WorkerDied):  # it had half a message
            envs.step([0] * 4)
        assert envs.reset(seed=0)[0][:, 0].tolist() == [0] * 4
        assert envs.step([0] * 4)[0][:, 0].tolist() == [1] * 4


@pytest.mark.parametrize("backend", ["C in workers", "Python in workers", "caller_steps"])
def test_an_interrupt_at_any_line_of_a_call_leaves_environments_that_work(backend):
    """A handler may raise between any two lines: here, at the first 60 lines of each call in turn."""
    import sys

    files = tuple(f"shoal/vector/{name}.py" for name in ("process", "workers")) + ("shoal/process/pool.py",)
    with make(backend) as envs:
        envs.reset(seed=0)
        for call in (lambda: envs.step([0] * 4), envs.reset, lambda: envs.state(0)):
            for stop_at in range(1, 60, 3):
                lines = 0

                def trace(frame, event, _, stop_at=stop_at):
                    nonlocal lines
                    if not frame.f_code.co_filename.endswith(files):
                        return None
                    lines += event == "line"
                    if lines == stop_at and frame.f_code.co_name not in ("step", "reset", "_world"):
                        sys.settrace(None)
                        raise KeyboardInterrupt
                    return trace

                sys.settrace(trace)
                try:
                    call()
                except KeyboardInterrupt:
                    pass
                finally:
                    sys.settrace(None)
                try:
                    envs.step([0] * 4)
                except shoal.errors.WorkerDied:
                    pass
                assert envs.reset(seed=0)[0][:, 0].tolist() == [0] * 4
                assert envs.step([3] * 4)[0][:, :2].tolist() == [[1, 3]] * 4
