"""Prints the results of native.py: rates, the cost of a call, and goals with the measured values."""

from __future__ import annotations

from dataclasses import dataclass

from shoal_lab.bench.interleave import Timing
from shoal_lab.bench.loops import SCALAR, VECTORISED, VECTORISED_FLOAT
from shoal_lab.bench.report import number
from shoal_lab.bench.rivals.native import MAKERS

LEASED, LIVE, IN_PLACE = "Shoal leased", "Shoal live", "Shoal live, actions in place"
FLOAT, FLOAT_LIVE, TWO = "Shoal leased, float", "Shoal live, float", "Shoal leased, 2 threads"
WRITE, PLUGIN = "(writing the actions)", "(the plug-in, from C)"  # parts of a step, for the table of calls


@dataclass(frozen=True)
class Rate:
    """The work of one call, and its time."""

    steps: int
    timing: Timing

    @property
    def per_second(self) -> float:
        return self.steps / self.timing.median_s

    @property
    def us(self) -> float:
        """Microseconds of one call."""
        return self.timing.median_s * 1e6

    def over(self, other: Rate) -> float:
        """Returns the ratio of steps per second to the other."""
        return self.steps / other.steps * self.timing.speedup(other.timing)

    def facts(self) -> dict[str, float]:
        low, high = self.steps / self.timing.high_s, self.steps / self.timing.low_s
        return {"median": self.per_second, "low": low, "high": high, "us_per_call": self.us}


Rates = dict[str, Rate]


# ---- Tables


def print_rates(num_envs: int, rates: Rates) -> None:
    print(f"\nCartPole-v1, num_envs={num_envs}: steps/s, median [quartiles], and times {LEASED}")
    for name, rate in rates.items():
        if name != WRITE:
            facts = rate.facts()
            span = f"[{number(facts['low'])} .. {number(facts['high'])}]"
            print(f"  {name:28} {number(facts['median']):>8} {span:22} {rate.over(rates[LEASED]):9.4f}")


@dataclass(frozen=True)
class CallCost:
    """Microseconds of one vector step: the plug-in's own work, and the cost that each way of calling adds."""

    plugin: float
    leased: float
    live: float
    in_place: float  # without writing the actions, which is the policy's work

    @classmethod
    def of(cls, rates: Rates) -> CallCost | None:
        if PLUGIN not in rates:
            return None
        work = rates[PLUGIN].us
        in_place = rates[IN_PLACE].us - rates[WRITE].us
        return cls(work, rates[LEASED].us - work, rates[LIVE].us - work, in_place - work)


def print_calls(results: dict[int, Rates]) -> None:
    print("\nWhat a call adds to the plug-in's own work, microseconds of a vector step")
    print(f"  {'num_envs':>8} {'plug-in':>10} {'leased':>10} {'live':>10} {'live, step() in place':>24}")
    for num_envs, rates in results.items():
        if cost := CallCost.of(rates):
            print(
                f"  {num_envs:8} {cost.plugin:10.3f} {cost.leased:+10.3f} {cost.live:+10.3f} "
                f"{cost.in_place:+24.3f}"
            )


def print_pixels(title: str, rates: Rates) -> None:
    print(f"\n{title}: GB/s of observations for each thread, median [quartiles]")
    for name, rate in rates.items():
        facts = rate.facts()
        span = f"[{facts['low'] / 1e9:.2f} .. {facts['high'] / 1e9:.2f}]"
        print(f"  {name:28} {facts['median'] / 1e9:8.2f} {span}")


# ---- Bars


@dataclass(frozen=True)
class Bar:
    """A goal and the measured value, which is None if a needed rival is missing."""

    text: str
    limit: float
    value: float | None
    at_least: bool = True

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "-"
        return "PASS" if (self.value >= self.limit) == self.at_least else "FAIL"

    def __str__(self) -> str:
        found = "not measured" if self.value is None else f"{self.value:,.2f}"
        sign = ">=" if self.at_least else "<"
        return f"{self.verdict:5} {self.text:70} {found:>12}   {sign} {self.limit:g}"


_ENVPOOL = tuple(name for name in MAKERS["envpool"] if not name.endswith("start"))
_BEST = {_ENVPOOL: "the best EnvPool"}
_RATIOS = (
    # num_envs, ours, the best of theirs, at least
    (1024, LEASED, (VECTORISED,), 0.8),
    (1024, LEASED, (SCALAR,), 3),
    (1024, LEASED, ("Gymnasium NumPy",), 12),
    (1024, LEASED, _ENVPOOL, 200),
    (1024, LEASED, ("PufferLib C",), 2.5),
    (1024, LEASED, ("PufferLib C, log seldom",), 2.5),
    (8192, LEASED, (VECTORISED,), 0.8),
    (8192, LEASED, ("Gymnasium NumPy",), 5),
    (8192, LEASED, _ENVPOOL, 150),
    (1024, FLOAT_LIVE, (VECTORISED_FLOAT,), 0.8),
    (8192, FLOAT, (VECTORISED_FLOAT,), 0.8),
    (1024, FLOAT, (VECTORISED_FLOAT,), 0.6),
    (8, LEASED, _ENVPOOL, 50),
    (8, IN_PLACE, ("PufferLib C",), 2),
    (8, IN_PLACE, ("PufferLib C, log seldom",), 2),
)


def bars(results: dict[int, Rates], pixels: Rates) -> list[Bar]:
    found = [
        Bar(
            f"n={n}: {ours} / {_BEST.get(theirs, theirs[0])}", limit, _ratio(results.get(n, {}), ours, theirs)
        )
        for n, ours, theirs, limit in _RATIOS
    ]
    cost = CallCost.of(results.get(8, {}))
    more = "us more than the plug-in's work"
    found += [
        Bar(f"n=8: step(actions) leased, {more}", 1.5, cost.leased if cost else None, at_least=False),
        Bar(
            f"n=8: step() live, actions in place, {more}",
            0.5,
            cost.in_place if cost else None,
            at_least=False,
        ),
    ]
    one = results.get(1, {}).get(LEASED)
    found.append(Bar("n=1: Shoal leased, thousand steps/s", 500, one.per_second / 1e3 if one else None))
    twos = [rates[TWO].over(rates[LEASED]) for rates in results.values()]
    found.append(Bar("every n: two threads / one, the worst", 0.9, min(twos, default=None)))
    for threads in ("1 thread", "2 threads"):
        value = _ratio(pixels, f"Shoal, {threads}", (f"memcpy, {threads}",))
        found.append(Bar(f"pixels: Shoal / memcpy, each on {threads}", 0.9, value))
    return found


def _ratio(rates: Rates, ours: str, theirs: tuple[str, ...]) -> float | None:
    met = [rates[ours].over(rates[name]) for name in theirs if name in rates] if ours in rates else []
    return min(met, default=None)
