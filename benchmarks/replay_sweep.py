"""How the cost of replay grows with capacity: pushes and draws from 1,000 to 10,000,000 rows.

python benchmarks/replay_sweep.py [--plot growth.svg] [--most 7]

Rows are (obs of 4 floats, action, reward, next_obs, done), 64 bytes each. Beside the draws: a bare C gather
of the same records, which has the same misses of cache and TLB and nothing else.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from interleave import interleave_bursts, undisturbed
from replay import BATCH, Shoal, bare_gather, bursts_of, rows_of

Line = list[tuple[int, float]]
COLOURS = ("#1f6feb", "#2da44e", "#bf3989", "#6e7781")
LEFT, TOP, WIDTH, HEIGHT = 70, 50, 560, 320


def measured(capacity: int, bursts: int, directory: Path) -> tuple[dict[str, float], str]:
    """Microseconds of each operation, and what pages the rows lie on."""
    shoal = Shoal(capacity, (4,), np.float32)
    rows = rows_of(min(capacity, 10_000), (4,), np.float32)
    for _ in range(-(-capacity // len(rows["done"]))):
        shoal.add(rows)
    batch = {name: array[:64].copy() for name, array in rows.items()}
    bare = bare_gather(shoal, capacity, directory)
    calls = bursts_of(
        {
            f"sample({BATCH})": shoal.sample,
            "extend of 64": lambda: shoal.add(batch),
            "push": shoal.add_one(rows),
        }
    )
    if bare is not None:
        calls[f"bare C gather of {BATCH}"] = undisturbed(bare)
    times = interleave_bursts(calls, bursts)
    pages = f"{shoal.buffer.huge_page_bytes >> 20} of {shoal.buffer.size_bytes >> 20} MB on 2 MB pages"
    shoal.buffer.close()
    return {name: timing.median_s * 1e6 for name, timing in times.items()}, pages


def plotted(lines: dict[str, Line]) -> str:
    """An SVG with logarithmic axes."""
    xs = [np.log10(x) for line in lines.values() for x, _ in line]
    ys = [np.log10(y) for line in lines.values() for _, y in line]
    low, high = np.floor(min(ys)), np.ceil(max(ys))

    def at(x: float, y: float) -> tuple[float, float]:
        right = LEFT + WIDTH * (np.log10(x) - min(xs)) / (max(xs) - min(xs))
        return right, TOP + HEIGHT * (high - np.log10(y)) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 190} {TOP + HEIGHT + 60}" '
        'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="28" font-size="16">Replay: microseconds by capacity (rows)</text>',
    ]
    for power in range(int(low), int(high) + 1):
        _, y = at(10 ** min(xs), 10.0**power)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} us</text>')
    for power in range(round(min(xs)), round(max(xs)) + 1):
        x, _ = at(10.0**power, 10**low)
        label = f"{10**power:,}"
        parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 24}" text-anchor="middle">{label}</text>')
    taken: list[float] = []
    for colour, (name, line) in zip(COLOURS, lines.items(), strict=False):
        points = [at(x, y) for x, y in line]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        y = points[-1][1] + 4
        while any(abs(y - other) < 16 for other in taken):
            y += 16
        taken.append(y)
        parts.append(f'<text x="{LEFT + WIDTH + 10}" y="{y:.1f}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, help="write a picture (SVG) there")
    parser.add_argument("--most", type=int, default=7, help="the largest power of ten (default: %(default)s)")
    parser.add_argument("--bursts", type=int, default=9, help="turns of each (default: %(default)s)")
    args = parser.parse_args()
    lines: dict[str, Line] = {}
    with tempfile.TemporaryDirectory() as directory:
        for power in range(3, args.most + 1):
            times, pages = measured(10**power, args.bursts, Path(directory))
            shown = "  ".join(f"{name} {us:.2f}" for name, us in times.items())
            print(f"{10**power:>12,} rows: {shown} us; {pages}")
            for name, us in times.items():
                lines.setdefault(name, []).append((10**power, us))
    if args.plot is not None:
        args.plot.write_text(plotted(lines))
        print(f"written: {args.plot}")


if __name__ == "__main__":
    main()
