"""Shoal, broken on purpose: Python processes with this directory in PYTHONPATH break what $BREAK names.

Each function adds a realistic bug; `shoal chaos` must find it.
"""

import os


def rows_of_a_restarted_worker_report_no_fault():
    from shoal.vector.workers import Workers

    Workers.mark_truncated = lambda self, w, error, into, row: []


def a_reward_is_that_of_the_step_before():
    from shoal.vector import ProcessVectorEnv

    step = ProcessVectorEnv.step
    calls = []

    def stale(self, actions):
        results = step(self, actions)
        calls.append((results[1].copy(), results[2].any() or results[3].any()))
        if len(calls) > 10 and not calls[-1][1] and not calls[-2][1]:
            results[1][3] = calls[-2][0][3]
        return results

    ProcessVectorEnv.step = stale


def every_fifth_push_stores_half_a_row():
    from shoal.replay import ReplayBuffer

    extend = ReplayBuffer.extend
    calls = []

    def torn(self, batch):
        words = batch["words"]
        calls.append(len(words))
        if len(calls) % 5 == 0:
            words = words.copy()
            words[:, words.shape[1] // 2 :] = 0
        return extend(self, {"words": words})

    ReplayBuffer.extend = torn


def an_acknowledged_push_is_lost():
    from shoal.replay import ReplayBuffer

    extend = ReplayBuffer.extend
    calls = []

    def forgotten(self, batch):
        ids = extend(self, batch)
        calls.append(ids)
        if len(calls) % 20 == 0:
            self._records.segment["rows"][ids[-1] % self.capacity][:8] = 0
        return ids

    ReplayBuffer.extend = forgotten


def a_worker_death_is_ignored():
    from shoal.process.pool import DIED, WorkerPool

    wait = WorkerPool.wait

    def deaf(self, timeout_s, only=None):
        while (status := wait(self, timeout_s, only)) == DIED:
            pass
        return status

    WorkerPool.wait = deaf


def a_descriptor_of_each_dead_worker_stays_open():
    from shoal.process.start import Running

    reap = Running.reap

    def leaky(self):
        if not self._reaped:
            os.dup(self.stderr_read_fd)
        return reap(self)

    Running.reap = leaky


def workers_do_not_watch_their_parent():
    from shoal import _core

    _core.start_watch = lambda *_: None


def a_death_names_the_wrong_environments():
    from shoal.process.pool import WorkerPool

    reap_worker = WorkerPool.reap_worker

    def mistaken(self, *arguments):
        error = reap_worker(self, *arguments)
        error.env_ids = [env + 1 for env in error.env_ids]
        return error

    WorkerPool.reap_worker = mistaken


if os.environ.get("BREAK"):
    globals()[os.environ["BREAK"]]()
