"""Looking into a run from outside, while it goes on, and what is left when it ends.

python examples/watch_a_run.py                  # starts a run in another process and watches it
python examples/watch_a_run.py --session NAME   # watches a live one: any run of yours, `shoal ps` lists them

The run was not started for being watched and does nothing for it; `run` below has no line about it but its
name. `shoal watch`, `shoal top` and `shoal metrics` are made of what is used here.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

import shoal
from shoal.errors import SessionError

PARENT = os.getppid()


@dataclass
class Args:
    session: str = ""  # of a live run; by default one is started
    env_id: str = "Reef-v0"  # of the run that is started
    world: int = 0  # which of its environments to look at
    snapshots: int = 5
    seconds: float = 2.0  # over which they are spread
    png: str = ""  # where to draw the last one; by default in a new temporary directory
    run: str = ""  # the name under which to be the run that is watched; what this file starts itself with

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for one in fields(cls):
            flag, default = "--" + one.name.replace("_", "-"), one.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


def run(args: Args) -> None:
    """Some training, without end."""
    envs = shoal.make_vec(args.env_id, num_envs=4, session=args.run)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    num_actions = envs.single_action_space.n  # type: ignore[attr-defined]
    print("going", flush=True)
    while os.getppid() == PARENT:  # nobody is there to end it? then it ends itself
        for _ in range(100):
            envs.step(rng.integers(num_actions, size=envs.num_envs))


def watch(args: Args, name: str, end: subprocess.Popen[str] | None) -> None:
    session = shoal.attach(name)
    facts = session.facts
    print(f"{name}: {facts['num_worlds']} environments of {facts['env']}, process {facts['pid']}")

    session.watch([args.world], rate_hz=20)  # only what is watched is published, and only so often
    before = session.counters()
    for _ in range(args.snapshots):
        time.sleep(args.seconds / args.snapshots)
        snapshot = session.snapshot(args.world, timeout_s=10)  # one step boundary: nothing in it is torn
        counters = session.counters()
        elapsed_s = (counters["time_ns"] - before["time_ns"]) * 1e-9
        rate, before = (counters["steps"] - before["steps"]) / elapsed_s, counters
        world = ", ".join(f"{key} {list(field.data.shape)}" for key, field in snapshot.world.items())
        print(
            f"episode {snapshot.episode}, tick {snapshot.tick}, {snapshot.age_s * 1000:.0f} ms old; "
            f"the run: {counters['steps']:,} steps, {rate:,.0f}/s, {counters['episodes']} episodes; {world}"
        )

    path = args.png or str(Path(tempfile.mkdtemp(prefix="shoal-")) / "run.png")
    shoal.state.write_png(path, shoal.state.render(snapshot))
    print(f"drawn to {path}")

    if (
        end is not None
    ):  # only a run of our own; one that is killed tells nobody, and it is known all the same
        end.send_signal(signal.SIGKILL)
        end.wait()
        print(f"killed it; alive: {session.alive}")
        try:
            session.counters()
        except SessionError as error:
            print(f"SessionError: {error}")
        latest = session.latest(args.world)  # what was seen last is still here
        print(f"last seen: {latest[1]}" if latest else "nothing was seen")
        print(f"live sessions called {name}: {sum(one['name'] == name for one in shoal.state.sessions())}")
    session.close()


def main(args: Args) -> None:
    if args.session:
        return watch(args, args.session, end=None)
    name = f"watched-{os.getpid()}"
    command = [sys.executable, __file__, "--run", name, "--env-id", args.env_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            if child.stdout is None or child.stdout.readline() != "going\n":
                raise SystemExit("the run did not start")
            watch(args, name, end=child)
        finally:
            child.kill()


if __name__ == "__main__":
    args = Args.parse()
    if args.run:
        run(args)
    else:
        main(args)
