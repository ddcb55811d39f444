"""The stage of one round, as a program: python -m shoal_lab.chaos.stage FD ORDER."""

from __future__ import annotations

import json
import os
import sys

from shoal_lab.chaos.rounds import run_stage

__all__: list[str] = []

if __name__ == "__main__":
    run_stage(int(sys.argv[1]), json.loads(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # leftovers were checked before
