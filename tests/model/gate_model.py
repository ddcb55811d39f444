"""A model of the gate's protocol, which checks every interleaving and every crash.

The model has a parent and two workers. The parent posts a step to each worker, checks the gates, arms the
wake-up word, checks once more and sleeps. Each worker sees its new number, writes its row in two halves,
stores the number in `done`, and wakes the parent if it sleeps and all workers are idle. A worker may die in
every state, or exceed the time limit. The kernel reports deaths to the parent, the parent kills late workers,
and it starts a replacement at the same gate.

The parent sleeps on a descriptor or on the wake-up word. A descriptor keeps a wake-up until the parent reads
it. On the word, the kernel lets the parent sleep only if the word is unchanged, and a wake-up reaches only a
process that sleeps at that moment. Also, the first thread of a dead process that ends reports the death, and
another thread may still write. While a replacement does not hold its liveness word yet, the parent sleeps on
its descriptor.

When a worker dies, the parent stores the worker's number in `done` for it, so that the last of the others
wakes the parent. The parent first waits until the dead worker has ended for certain, because it might claim
the wake-up word and never send the wake-up. Then it waits for the others and starts a replacement, whose row
it marks. With `raises`, the results of the step are dropped, the death of a worker that had finished counts,
too, and a death that is known before a step prevents posting it.

The parent is shoal_gates_wait of core/gates.c; a worker is shoal_worker_wait and shoal_worker_finish. No
sleep times out here: a real one lasts at most a slice (core/gate.h), and correctness must not depend on that.
Memory is sequentially consistent: tests/core/test_gate_order.c tests the memory order of real machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.states import Violation, put, replace, visit

WORKERS = 2
FIRST = -1  # the number of a row that shows a replacement's first observation
DESCRIPTOR, WORD = 1, 2  # how the parent sleeps


class Worker(NamedTuple):
    at: str = "begin"
    seen: int = 0
    liveness: int = 0
    alive: bool = True
    dying: bool = False  # one of its threads has ended; this one will


class Gate(NamedTuple):
    go: int = 0
    done: int = 0
    asleep: bool = False  # the worker's flag before it sleeps
    woken: bool = False  # a wake-up that it has not received yet
    first: tuple[int, int] = (0, 0)  # the first half of the row: which worker and which number wrote it
    second: tuple[int, int] = (0, 0)  # the second half


class State(NamedTuple):
    workers: tuple[Worker, ...] = (Worker(),) * WORKERS
    gates: tuple[Gate, ...] = (Gate(),) * WORKERS
    parent: str = "post 0"
    step: int = 0
    armed: int = 0  # the wake-up word: whether the parent sleeps, and how
    woken: bool = False  # it was woken while it slept on the word
    signaled: bool = False  # the descriptor has a wake-up
    polled: frozenset[int] = frozenset()  # workers whose death ends the parent's sleep
    marked: frozenset[int] = frozenset()  # workers that were replaced in this step
    crashes: int = 1
    late: int = 1  # how often workers may still exceed the limit
    ghost: tuple[int, Worker] | None = None  # a mutant: a worker that was replaced and not killed
    how: int = DESCRIPTOR
    by_word: bool = False
    raises: bool = False
    lost: frozenset[int] = frozenset()  # dead workers that were not replaced yet


def is_idle(gate: Gate) -> bool:
    return gate.done == gate.go


def is_over(worker: Worker) -> bool:
    return worker.dying or not worker.alive


def has_ended(worker: Worker) -> bool:
    return not worker.alive


def write(gate: Gate, half: str, row: tuple[int, int], free: bool) -> Gate:
    if is_idle(gate) and not free:
        raise Violation(f"{row} is written while the learner uses the row")
    return replace(gate, **{half: row})


def work(
    state: State, w: int, worker: Worker, mutant: str
) -> Iterator[tuple[Worker, Gate, dict[str, object]]]:
    """Yields every next step of the worker at gate `w`."""
    gate, early = state.gates[w], mutant == "done before the row"
    free = early or w in state.lost  # the learner does not use its row
    row = worker.liveness, worker.seen

    def to(at: str, now: Gate = gate, **changes: object) -> tuple[Worker, Gate, dict[str, object]]:
        return replace(worker, at=at), now, changes

    if worker.at == "begin":  # a command posted before it started must be new to it
        seen = gate.go if mutant == "start with the posted number" else gate.done
        yield replace(worker, at="look", seen=seen), gate, {}
    elif worker.at == "look":
        if gate.go != worker.seen:
            after = replace(worker, at="finish" if early else "first", seen=gate.go)
            yield after, replace(gate, asleep=False), {}
        else:
            yield to("arm")
    elif worker.at == "arm":
        yield to("sleep" if mutant == "worker: no second check" else "again", replace(gate, asleep=True))
    elif worker.at == "again":
        yield to("sleep") if gate.go == worker.seen else to("look", replace(gate, asleep=False))
    elif worker.at == "sleep":
        if gate.woken:
            yield to("look", replace(gate, asleep=False, woken=False))
    elif worker.at == "first":
        yield to("second", write(gate, "first", row, free))
    elif worker.at == "second":
        yield to("check wake" if early else "finish", write(gate, "second", row, free))
    elif worker.at == "finish":
        yield to("first" if early else "check wake", replace(gate, done=worker.seen))
    elif worker.at == "check wake":
        all_idle = all(map(is_idle, state.gates))
        mine = w == 0 if mutant == "only worker 0 wakes the parent" else True
        yield to("write" if state.armed and all_idle and mine else "look")
    elif worker.at == "write":
        taken = (
            {"armed": 0}
            if mutant == "claim the word, then write the descriptor" and state.armed == DESCRIPTOR
            else {}
        )
        yield to(("look", "signal", "take")[state.armed], **taken)
    elif worker.at == "take":  # one of several claims the wake-up word; it may die before it wakes the parent
        as_found = state.armed == WORD or (state.armed and mutant == "claim without comparing")
        yield to("wake", armed=0) if as_found else to("look")
    elif worker.at == "wake":
        yield to("look", woken=state.woken or (state.parent == "asleep" and state.how == WORD))
    else:
        yield to("look", signaled=True)


def step_workers(state: State, mutant: str) -> Iterator[State]:
    for w, worker in enumerate(state.workers):
        if worker.alive:
            for after, gate, changes in work(state, w, worker, mutant):
                moved = {"workers": put(state.workers, w, after), "gates": put(state.gates, w, gate)}
                yield replace(state, **moved, **changes)
    if state.ghost is not None:
        w, worker = state.ghost
        for after, gate, changes in work(state, w, worker, mutant):
            yield replace(state, ghost=(w, after), gates=put(state.gates, w, gate), **changes)


def step_parent(state: State, steps: int, mutant: str) -> Iterator[State]:
    at, _, which = state.parent.partition(" ")
    busy = [w for w, gate in enumerate(state.gates) if not is_idle(gate) and w not in state.lost]
    dead_or_exiting = [w for w, worker in enumerate(state.workers) if is_over(worker) and w not in state.lost]
    dead = dead_or_exiting if state.raises else [w for w in busy if w in dead_or_exiting]
    if at == "post" and state.step < steps:
        w = int(which)
        if w == 0 and state.raises and dead_or_exiting:
            yield replace(state, parent="restart", lost=frozenset(dead_or_exiting))
            return
        if not is_idle(state.gates[w]):
            raise Violation(f"a step is posted to worker {w}, which is busy")
        gates = put(state.gates, w, replace(state.gates[w], go=state.gates[w].go + 1))
        yield replace(state, gates=gates, parent=f"wake {w}")
    elif at == "wake":
        w = int(which)
        woken = state.gates[w].asleep and mutant != "post without a wake-up"
        gates = put(state.gates, w, replace(state.gates[w], woken=woken or state.gates[w].woken))
        yield replace(state, gates=gates, parent=f"post {w + 1}" if w + 1 < WORKERS else "look")
    elif at == "look":
        yield replace(state, parent="arm" if busy else "restart" if state.lost else "take")
    elif at == "arm":
        after = "sleep" if mutant == "parent: no second check" else "again"
        polled = set(busy)
        begins = any(worker.at == "begin" and worker.liveness for worker in state.workers)
        how = WORD if state.by_word and not begins else DESCRIPTOR
        if how == WORD and mutant != "watch busy workers only":  # an idle worker may have claimed the word
            gone = is_over if mutant == "do not watch exiting workers" else has_ended
            polled |= {w for w in range(WORKERS) if not gone(state.workers[w]) and w not in state.lost}
        yield replace(state, parent=after, armed=how, how=how, polled=frozenset(polled))
    elif at == "again":
        yield (
            replace(state, parent="sleep")
            if busy
            else replace(state, parent="look", armed=0, polled=frozenset())
        )
    elif at == "sleep" and state.how == WORD:
        if state.armed or mutant == "sleep without comparing the word":
            yield replace(state, parent="asleep")
        else:
            yield replace(state, parent="report" if dead else "look", polled=frozenset())
    elif at in ("sleep", "asleep"):
        saw_death = any(is_over(state.workers[w]) for w in state.polled & {*busy, *dead})
        saw_death |= any(has_ended(state.workers[w]) for w in state.polled)
        awake = {"armed": 0, "woken": False, "polled": frozenset()}
        if state.how == DESCRIPTOR:
            awake["signaled"] = False
        signaled = state.woken if state.how == WORD else state.signaled
        if signaled or (saw_death and mutant != "ignore deaths"):
            yield replace(state, parent="report" if dead else "look", **awake)
        if state.late and busy:  # step_timeout_s has passed
            workers, ghost = state.workers, None
            for w in busy:
                if mutant == "replace without killing" and workers[w].alive:
                    ghost = w, workers[w]
                workers = put(workers, w, replace(workers[w], alive=False))
            yield replace(state, parent="report", late=state.late - 1, workers=workers, ghost=ghost, **awake)
    elif at == "report":
        gates = state.gates
        for w in dead if mutant != "do not finish for the dead" else []:
            gates = put(gates, w, replace(gates[w], done=gates[w].go))
        yield replace(state, parent="reap", gates=gates, lost=state.lost | {*dead})
    elif at == "reap":
        ended = not any(state.workers[w].alive for w in state.lost)
        if ended or mutant in ("sleep before the dead have ended", "replace before the dead have ended"):
            yield replace(state, parent="restart" if mutant == "do not wait for the others" else "look")
    elif at == "restart" and state.lost:
        yield from restart(state, min(state.lost), mutant)
    elif at == "restart" and not state.raises:
        yield replace(state, parent="take")
    elif at == "restart":
        yield replace(state, parent="post 0", step=state.step + 1, marked=frozenset())
    elif at == "take":
        for w, gate in enumerate(state.gates):
            row = (state.workers[w].liveness, FIRST if w in state.marked else gate.go)
            if (gate.first, gate.second) != (row, row):
                raise Violation(f"row {w} is {gate.first}, {gate.second} where {row} belongs")
        yield replace(state, parent="post 0", step=state.step + 1, marked=frozenset())


def restart(state: State, w: int, mutant: str) -> Iterator[State]:
    """Replaces a worker that has ended: marks its row and starts another at its gate."""
    ghost = state.ghost
    if state.workers[w].alive:
        if mutant != "replace before the dead have ended":
            return
        ghost = w, state.workers[w]
    liveness = state.workers[w].liveness + 1
    row = (liveness, FIRST)
    gate = replace(state.gates[w], first=row, second=row, woken=False)
    yield replace(
        state,
        ghost=ghost,
        workers=put(state.workers, w, Worker(liveness=liveness)),
        gates=put(state.gates, w, gate),
        marked=state.marked if mutant == "forget to mark" else state.marked | {w},
        lost=state.lost - {w},
    )


def crash(state: State) -> Iterator[State]:
    for w, worker in enumerate(state.workers):
        if state.crashes and worker.alive and not worker.dying:
            gone = replace(worker, dying=True) if state.by_word else replace(worker, alive=False)
            yield replace(state, workers=put(state.workers, w, gone), crashes=state.crashes - 1)


def end(state: State) -> Iterator[State]:
    """Ends workers that are exiting."""
    for w, worker in enumerate(state.workers):
        if worker.alive and worker.dying:
            yield replace(state, workers=put(state.workers, w, replace(worker, alive=False)))


def explore(mutant: str = "", *, by_word: bool = False, raises: bool = False, late: int = 1) -> int:
    """Visits every state of two steps; returns their number. Raises Violation if one breaks a guarantee."""
    steps = 2

    def steps_of(state: State) -> list[State]:
        after = [*step_workers(state, mutant), *step_parent(state, steps, mutant), *end(state)]
        if not after and state.step < steps:
            raise Violation(f"deadlock: {state}")
        return [*after, *crash(state)]

    return visit([State(by_word=by_word, raises=raises, late=late)], steps_of)
