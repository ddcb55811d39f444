"""The gate's protocol as a small machine, explored through every interleaving and every crash.

A parent and two workers. The parent posts a step to each, looks, says that it will sleep, looks once more
and sleeps; each worker sees its number, writes its row in two halves, gives the number back, and rings if the
parent sleeps and everybody is done. A worker may die in every state, and may be taken for late: the parent
is told of deaths by the kernel, kills whom it holds for late, and starts another under the same gate.

The parent sleeps on its descriptor, which keeps a ring until it is heard, or on the bell's own word: then
the kernel lets it sleep only if the word still says so, and a wake-up reaches who sleeps just then or nobody.
Then too it is told of a death by the first thread of that process to end, while another may still write.
Where it sleeps on words it sleeps on its descriptor all the same while a replacement has no sign of life yet.

A dead worker's number is given back for it, so that others ring. Once it has ended for certain (it might
take the bell and not ring it) these are waited for, and another takes its place, its row marked. With
`raises` the step is nobody's then, the death of one that had done its part counts too, and one that is known
before a step keeps it from being posted.

The parent is shoal_gates_wait of core/gates.c, a worker is shoal_worker_wait and shoal_worker_finish. No
sleep ends by itself here: a real one lasts at most a slice (core/gate.h), and nothing may depend on that.
Memory is sequentially consistent: what real machines reorder is for tests/core/test_gate_order.c.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

WORKERS = 2
FIRST = -1  # the number of a row that shows a replacement's first observation
DESCRIPTOR, WORD = 1, 2  # how the parent sleeps


class Worker(NamedTuple):
    at: str = "begin"
    seen: int = 0
    liveness: int = 0
    alive: bool = True
    dying: bool = False  # one of its threads has ended; this one is about to


class Gate(NamedTuple):
    go: int = 0
    done: int = 0
    asleep: bool = False  # the worker says that it sleeps
    woken: bool = False  # a wake-up that is on its way to it
    first: tuple[int, int] = (0, 0)  # the row: whose life and which number wrote its first half,
    second: tuple[int, int] = (0, 0)  # and its second


class State(NamedTuple):
    workers: tuple[Worker, ...] = (Worker(),) * WORKERS
    gates: tuple[Gate, ...] = (Gate(),) * WORKERS
    parent: str = "post 0"
    step: int = 0
    armed: int = 0  # the bell: whether the parent says that it sleeps, and how
    woken: bool = False  # it was woken as it slept on the word
    rung: bool = False  # the descriptor was rung
    polled: frozenset[int] = frozenset()  # whose deaths end the parent's sleep: who was busy before it
    marked: frozenset[int] = frozenset()  # workers that were replaced in this step
    crashes: int = 1
    late: int = 1  # how often the parent may still hold somebody for late
    ghost: tuple[int, Worker] | None = None  # one that was replaced and not killed: a mutant's
    how: int = DESCRIPTOR
    by_word: bool = False
    raises: bool = False
    lost: frozenset[int] = frozenset()  # whose numbers were given back for them, until they are replaced


class Violation(Exception):
    """The protocol broke a promise."""


_PLACES = {kind: {name: i for i, name in enumerate(kind._fields)} for kind in (Worker, Gate, State)}


def replace(value: Any, **changes: object) -> Any:
    """What `_replace` does, twice as fast: millions of states are made."""
    values, places = list(value), _PLACES[type(value)]
    for name, new in changes.items():
        values[places[name]] = new
    return tuple.__new__(type(value), values)


def put(values: tuple, place: int, value: object) -> tuple:
    return (*values[:place], value, *values[place + 1 :])


def is_idle(gate: Gate) -> bool:
    return gate.done == gate.go


def is_over(worker: Worker) -> bool:
    return worker.dying or not worker.alive


def is_gone(worker: Worker) -> bool:
    return not worker.alive


def write(gate: Gate, half: str, row: tuple[int, int], free: bool) -> Gate:
    if is_idle(gate) and not free:
        raise Violation(f"{row} is written while the learner has the row")
    return replace(gate, **{half: row})


def work(
    state: State, w: int, worker: Worker, mutant: str
) -> Iterator[tuple[Worker, Gate, dict[str, object]]]:
    """What a worker at gate `w` may do next."""
    gate, early = state.gates[w], mutant == "done before the row"
    free = early or w in state.lost  # nobody has its row
    row = worker.liveness, worker.seen

    def to(at: str, now: Gate = gate, **changes: object) -> tuple[Worker, Gate, dict[str, object]]:
        return replace(worker, at=at), now, changes

    if worker.at == "begin":  # what was posted before it came must be new to it
        seen = gate.go if mutant == "begin with what is asked" else gate.done
        yield replace(worker, at="look", seen=seen), gate, {}
    elif worker.at == "look":
        if gate.go != worker.seen:
            after = replace(worker, at="finish" if early else "first", seen=gate.go)
            yield after, replace(gate, asleep=False), {}
        else:
            yield to("arm")
    elif worker.at == "arm":
        yield to("sleep" if mutant == "worker: no second look" else "again", replace(gate, asleep=True))
    elif worker.at == "again":
        yield to("sleep") if gate.go == worker.seen else to("look", replace(gate, asleep=False))
    elif worker.at == "sleep":
        if gate.woken:
            yield to("look", replace(gate, asleep=False, woken=False))
    elif worker.at == "first":
        yield to("second", write(gate, "first", row, free))
    elif worker.at == "second":
        yield to("ring" if early else "finish", write(gate, "second", row, free))
    elif worker.at == "finish":
        yield to("first" if early else "ring", replace(gate, done=worker.seen))
    elif worker.at == "ring":
        all_idle = all(map(is_idle, state.gates))
        mine = w == 0 if mutant == "only one of them rings" else True
        yield to("write" if state.armed and all_idle and mine else "look")
    elif worker.at == "write":
        taken = {"armed": 0} if mutant == "take the bell, then ring" and state.armed == DESCRIPTOR else {}
        yield to(("look", "ring it", "take")[state.armed], **taken)
    elif worker.at == "take":  # of several, one takes a bell that is a word; it may die before it wakes
        as_found = state.armed == WORD or (state.armed and mutant == "take whatever is there")
        yield to("wake", armed=0) if as_found else to("look")
    elif worker.at == "wake":
        yield to("look", woken=state.woken or (state.parent == "asleep" and state.how == WORD))
    else:
        yield to("look", rung=True)


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
    told = [w for w, worker in enumerate(state.workers) if is_over(worker) and w not in state.lost]
    dead = told if state.raises else [w for w in busy if w in told]
    if at == "post" and state.step < steps:
        w = int(which)
        if w == 0 and state.raises and told:
            yield replace(state, parent="mend", lost=frozenset(told))
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
        yield replace(state, parent="arm" if busy else "mend" if state.lost else "take")
    elif at == "arm":
        after = "sleep" if mutant == "parent: no second look" else "again"
        polled = set(busy)
        begins = any(worker.at == "begin" and worker.liveness for worker in state.workers)
        how = WORD if state.by_word and not begins else DESCRIPTOR
        if how == WORD and mutant != "watch the busy ones alone":  # who rings may die before it wakes
            gone = is_over if mutant == "forget who is dying" else is_gone
            polled |= {w for w in range(WORKERS) if not gone(state.workers[w]) and w not in state.lost}
        yield replace(state, parent=after, armed=how, how=how, polled=frozenset(polled))
    elif at == "again":
        yield (
            replace(state, parent="sleep")
            if busy
            else replace(state, parent="look", armed=0, polled=frozenset())
        )
    elif at == "sleep" and state.how == WORD:
        if state.armed or mutant == "sleep whatever the word says":
            yield replace(state, parent="asleep")
        else:
            yield replace(state, parent="bury" if dead else "look", polled=frozenset())
    elif at in ("sleep", "asleep"):
        heard = any(is_over(state.workers[w]) for w in state.polled & {*busy, *dead})
        heard |= any(is_gone(state.workers[w]) for w in state.polled)
        awake = {"armed": 0, "woken": False, "polled": frozenset()}
        if state.how == DESCRIPTOR:
            awake["rung"] = False
        rung = state.woken if state.how == WORD else state.rung
        if rung or (heard and mutant != "deaf to a death"):
            yield replace(state, parent="bury" if dead else "look", **awake)
        if state.late and busy:  # step_timeout_s is over
            workers, ghost = state.workers, None
            for w in busy:
                if mutant == "replace without killing" and workers[w].alive:
                    ghost = w, workers[w]
                workers = put(workers, w, replace(workers[w], alive=False))
            yield replace(state, parent="bury", late=state.late - 1, workers=workers, ghost=ghost, **awake)
    elif at == "bury":
        gates = state.gates
        for w in dead if mutant != "leave its number open" else []:
            gates = put(gates, w, replace(gates[w], done=gates[w].go))
        yield replace(state, parent="reap", gates=gates, lost=state.lost | {*dead})
    elif at == "reap":
        ended = not any(state.workers[w].alive for w in state.lost)
        if ended or mutant in ("sleep beside who is dying", "replace who is dying"):
            yield replace(state, parent="mend" if mutant == "wait for nobody" else "look")
    elif at == "mend" and state.lost:
        yield from mend(state, min(state.lost), mutant)
    elif at == "mend" and not state.raises:
        yield replace(state, parent="take")
    elif at == "mend":
        yield replace(state, parent="post 0", step=state.step + 1, marked=frozenset())
    elif at == "take":
        for w, gate in enumerate(state.gates):
            row = (state.workers[w].liveness, FIRST if w in state.marked else gate.go)
            if (gate.first, gate.second) != (row, row):
                raise Violation(f"row {w} is {gate.first}, {gate.second} where {row} belongs")
        yield replace(state, parent="post 0", step=state.step + 1, marked=frozenset())


def mend(state: State, w: int, mutant: str) -> Iterator[State]:
    """Waits until it has ended; its row is marked, and another begins under its gate."""
    ghost = state.ghost
    if state.workers[w].alive:
        if mutant != "replace who is dying":
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
    """Who is dying does die."""
    for w, worker in enumerate(state.workers):
        if worker.alive and worker.dying:
            yield replace(state, workers=put(state.workers, w, replace(worker, alive=False)))


def explore(mutant: str = "", *, by_word: bool = False, raises: bool = False, late: int = 1) -> int:
    """Goes through every state of two steps; how many there are. Violation if one breaks a promise."""
    steps, begin = 2, State(by_word=by_word, raises=raises, late=late)
    seen, todo = {begin}, [begin]
    while todo:
        state = todo.pop()
        after = [*step_workers(state, mutant), *step_parent(state, steps, mutant), *end(state)]
        if not after and state.step < steps:
            raise Violation(f"nobody can go on: {state}")
        for one in [*after, *crash(state)]:
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return len(seen)
