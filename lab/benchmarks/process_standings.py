"""Prints the results of process.py: tables, and goals with the measured values."""

from __future__ import annotations

from collections.abc import Iterable

from standings import Bar, Rate, Rates

from shoal_lab.bench.pingpong import BARE, GATE, GATE_YIELDS, SLEEP

TWO, ONE, CALLER = "Shoal, 2 workers", "Shoal, 1 worker", "Shoal, 1 worker + caller"
CONFIGURATIONS = {
    TWO: {"num_workers": 2},
    ONE: {"num_workers": 1},
    CALLER: {"num_workers": 1, "caller_steps": True},
}
BARE_OF = {name: name.replace("Shoal", "bare loop") for name in CONFIGURATIONS}
SYNC, ASYNC = "Gymnasium sync", "Gymnasium async"
PUFFER_OF = {TWO: "PufferLib, 2 workers", ONE: "PufferLib, 1 worker"}
PUFFERS = tuple(PUFFER_OF.values())
PROCESSES = (ASYNC, "SB3 subproc", "Tianshou shmem", "Tianshou subproc", "TorchRL parallel")
"""Peers with one process for each environment; "best peer" is the best of these."""


def best(rates: Rates, names: Iterable[str]) -> str | None:
    """Returns the fastest of the named rivals that took part."""
    return max((name for name in names if name in rates), key=lambda n: rates[n].per_second, default=None)


def over(rates: Rates, ours: str, theirs: str | None) -> float | None:
    if theirs is None or ours not in rates or theirs not in rates:
        return None
    return rates[ours].over(rates[theirs])


def over_best(rates: Rates, ours: str) -> float | None:
    return over(rates, ours, best(rates, PROCESSES))


# ---- Tables


def print_rates(title: str, rates: Rates) -> None:
    """Prints the time of all rivals' vector steps, and ratios of steps per second within the run."""
    rival, puffer = best(rates, PROCESSES), best(rates, PUFFERS)
    print(f"\n{title}")
    heads = f"{'x best peer':>12} {'x PufferLib':>12} {'x sync':>8} {'x bare loop':>12}"
    print(f"  {'':26} {'us/vector step':>14} {'quartiles':>18} {'env steps/s':>12} {heads}")
    for name, rate in rates.items():
        low, high = rate.timing.low_s * 1e6, rate.timing.high_s * 1e6
        ratios = [over(rates, name, other) for other in (rival, puffer, SYNC, BARE_OF.get(name))]
        shown = "".join(f" {_times(x):>{w}}" for x, w in zip(ratios, (12, 12, 8, 12), strict=True))
        span = f"{low:.1f} .. {high:.1f}"
        print(f"  {name:26} {rate.us:14.1f} {span:>18} {rate.per_second:12,.0f}{shown}")


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}" if ratio < 20 else f"{ratio:.0f}"


def print_work(num_envs: int, results: dict[float, Rates]) -> None:
    print(f"\nEnvironments that work, num_envs={num_envs}: us per vector step, and times {SYNC}")
    names = list(next(iter(results.values())))
    print(f"  {'us each':>8}" + "".join(f" {name:>26}" for name in names))
    for us, rates in results.items():
        cells = (f"{rates[name].us:.1f} ({_times(over(rates, name, SYNC))}x)" for name in names)
        print(f"  {us:8g}" + "".join(f" {cell:>26}" for cell in cells))


def print_plain(title: str, rates: Rates, against: str | None = None) -> None:
    print(f"\n{title}")
    for name, rate in rates.items():
        ratio = over(rates, name, against)
        words = "" if ratio is None else f" {ratio:8.2f}x {against}"
        print(f"  {name:34} {rate.timing}{words}")


# ---- Bars


def still_bars(num_envs: int, rates: Rates) -> list[Bar]:
    where = f"do nothing, n={num_envs}"
    found = [
        Bar(f"{where}: {ours} / {theirs}", 0.7, over(rates, ours, theirs)) for ours, theirs in BARE_OF.items()
    ]
    top = best(rates, CONFIGURATIONS)
    if num_envs == 8:
        found.append(Bar(f"{where}: {TWO} / best peer", 8, over_best(rates, TWO)))
        if top is not None:
            found.append(Bar(f"{where}: best Shoal ({top}) / best peer", 40, over_best(rates, top)))
    elif num_envs == 32:
        found.append(Bar(f"{where}: {TWO} / best peer", 25, over_best(rates, TWO)))
    return found + _puffer_bars(where, rates)


def _puffer_bars(where: str, rates: Rates) -> list[Bar]:
    return [Bar(f"{where}: {ours} / {t}", 1, over(rates, ours, t)) for ours, t in PUFFER_OF.items()]


def pixel_bars(num_envs: int, rates: Rates) -> list[Bar]:
    where, top = f"pixels, n={num_envs}", best(rates, CONFIGURATIONS)
    limit = 10 if num_envs == 8 else 20
    found = [Bar(f"{where}: {TWO} / best peer", limit, over_best(rates, TWO))]
    if top not in (TWO, None):
        found.append(Bar(f"{where}: best Shoal ({top}) / best peer", limit, over_best(rates, top)))
    return found + _puffer_bars(where, rates)


def info_bars(num_envs: int, rates: Rates) -> list[Bar]:
    ours, without, where = "Shoal, four", "Shoal, no infos", f"four float infos, n={num_envs}"
    slower = over(rates, without, ours)
    return [
        Bar(f"{where}: time of a step / without infos", 1.5, slower, at_least=False),
        Bar(f"{where}: Shoal / {SYNC}", 1.5, over(rates, ours, f"{SYNC}, four")),
    ]


def work_bars(num_envs: int, results: dict[float, Rates]) -> list[Bar]:
    begin = 20 if num_envs == 8 else 10
    ratios = [over(rates, TWO, SYNC) for us, rates in results.items() if us >= begin]
    worst = min((ratio for ratio in ratios if ratio is not None), default=None)
    return [Bar(f"work from {begin} us on, n={num_envs}: {TWO} / {SYNC}, the worst", 1, worst)]


def gate_bars(apart: Rates, together: Rates, crowded: Rates) -> list[Bar]:
    def times(rates: Rates, ours: str, theirs: str) -> float | None:
        ratio = over(rates, ours, theirs)
        return None if ratio is None else 1 / ratio

    return [
        Bar("round trip: gate / bare spin, then sleep", 1.5, times(apart, GATE, BARE), at_least=False),
        Bar("one core for both: gate / sleeping", 1, times(together, GATE, SLEEP), at_least=False),
        Bar(
            "one core for both: gate, told to yield / sleeping",
            1,
            times(together, GATE_YIELDS, SLEEP),
            at_least=False,
        ),
        Bar("crowded: gate / sleeping", 1, times(crowded, GATE, SLEEP), at_least=False),
        Bar("crowded: gate, told to yield / sleeping", 1, times(crowded, GATE_YIELDS, SLEEP), at_least=False),
    ]


def start_bars(rates: Rates, contexts: Iterable[str]) -> list[Bar]:
    return [
        Bar(f"start, {c}: Shoal / Gymnasium async", 5, over(rates, f"Shoal, {c}", f"{ASYNC}, {c}"))
        for c in contexts
    ]


def worker_bars(results: dict[str, Rates], default: str) -> list[Bar]:
    """Compares the default number of workers with the best number."""
    found = []
    for title, rates in results.items():
        top = best(rates, [name for name in rates if "caller" not in name])
        found.append(Bar(f"{title}: default / best ({top})", 0.9, over(rates, default, top)))
    return found


def facts(rates: Rates) -> dict[str, dict[str, float]]:
    return {name: _facts(rate) for name, rate in rates.items()}


def _facts(rate: Rate) -> dict[str, float]:
    return {
        "us": rate.us,
        "us_low": rate.timing.low_s * 1e6,
        "us_high": rate.timing.high_s * 1e6,
        "env_steps_per_second": rate.per_second,
    }
