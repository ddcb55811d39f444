"""Runs scenarios with the n-th call failing; prints what was wrong, exit status 1 if anything was.

python -m tests.built build/faults/_core.*.so tests.faults.driver NAME --stride 7 --seconds 60
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

from tests.faults.harness import fail_each
from tests.faults.mutants import MUTANTS
from tests.faults.scenarios import SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--stride", type=int, default=1, help="every which call fails")
    parser.add_argument("--first", type=int, default=1, help="the first call that fails")
    parser.add_argument("--seconds", type=float, default=1e9, help="for each scenario")
    parser.add_argument("--mutants", action="store_true", help="scenarios that must be found wrong")
    arguments = parser.parse_args()
    scenarios = MUTANTS if arguments.mutants else SCENARIOS
    wrong = 0
    for name in arguments.names or scenarios:
        with tempfile.TemporaryDirectory(prefix="shoal-faults-") as directory:
            numbers = itertools.count(arguments.first, arguments.stride)
            cases, calls, problems = fail_each(
                scenarios[name], Path(directory) / "place", numbers, arguments.seconds
            )
        print(f"{name}: {cases} cases, {dict(calls.most_common())}", flush=True)
        for problem in problems:
            print(f"  WRONG {problem}", flush=True)
        wrong += bool(problems)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
