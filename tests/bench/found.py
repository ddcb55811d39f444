"""Results as a run would find them, without a run."""

from shoal_lab.bench.results import Case, Point, Row, Sweep


def case(**changes):
    rows = (
        Row("Shoal", "shoal", (80.0, 90.0, 100.0), "num_threads=1"),
        Row("a plain loop", "limit", (100.0, 100.0, 110.0)),
        Row("a slow loop", "limit", (10.0, 10.0, 10.0)),
        Row("Peer & <sons>", "peer", (1.0, 2.0, 1.0), "as it comes"),
    )
    facts = {"suite": "native", "title": "Toys, num_envs=8", "unit": "env steps/s", "rows": rows}
    return Case(**{**facts, "parameters": "3 bursts", **changes})


def sweep(name="envs"):
    points = []
    for x, ours, bound in ((1, 10.0, 100.0), (4, 40.0, 200.0), (16, 150.0, 210.0), (64, 160.0, 220.0)):
        rows = Row("Shoal", "shoal", (ours, ours * 1.1, ours * 0.9)), Row("C loop", "limit", (bound,) * 3)
        points.append(Point(x, case(rows=rows)))
    return Sweep(name, "Toys in C", "num_envs", tuple(points), ("Saturated from 16 on.",), 16)
