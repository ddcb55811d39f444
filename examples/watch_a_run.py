"""Watches a running job from another process, and shows what can still be read after the job ends.

python examples/watch_a_run.py                  # starts a run in another process and watches it
python examples/watch_a_run.py --session NAME   # watches any running job of yours; `shoal ps` lists them

The run needs no setup to be watched: `run` below only gives its session a name. `shoal watch`, `shoal top`
and `shoal metrics` use the same functions as this example.
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
    session: str = ""  # the session to watch; by default the example starts a run
    env_id: str = "Reef-v0"  # the environment of the run that the example starts
    world: int = 0  # the environment to look at
    snapshots: int = 5
    seconds: float = 2.0  # duration over which the snapshots are spread
    png: str = ""  # file for a picture of the last snapshot; by default in a new temporary directory
    run: str = ""  # internal: run the job with this session name (the example starts itself with it)

    @classmethod
    def parse(cls) -> Args:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        for field in fields(cls):
            flag, default = "--" + field.name.replace("_", "-"), field.default
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
        return cls(**vars(parser.parse_args()))


def run(args: Args) -> None:
    """Steps environments with random actions until the parent process ends."""
    envs = shoal.make_vec(args.env_id, num_envs=4, session=args.run)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    num_actions = envs.single_action_space.n  # type: ignore[attr-defined]
    print("started", flush=True)
    while os.getppid() == PARENT:
        for _ in range(100):
            envs.step(rng.integers(num_actions, size=envs.num_envs))


def watch(args: Args, name: str, child: subprocess.Popen[str] | None) -> None:
    """Prints snapshots of a session, then kills its process if it is our own `child`."""
    session = shoal.attach(name)
    facts = session.facts
    print(f"{name}: {facts['num_worlds']} environments of {facts['env']}, process {facts['pid']}")

    session.watch([args.world], rate_hz=20)  # the run publishes only watched environments, at this rate
    before = session.counters()
    for _ in range(args.snapshots):
        time.sleep(args.seconds / args.snapshots)
        snapshot = session.snapshot(args.world, timeout_s=10)  # all fields are from the same step
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

    if child is not None:
        child.send_signal(signal.SIGKILL)  # the run cannot announce its end, but the session detects it
        child.wait()
        print(f"killed the run; alive: {session.alive}")
        try:
            session.counters()
        except SessionError as error:
            print(f"SessionError: {error}")
        latest = session.latest(args.world)  # the last snapshot can still be read
        print(f"last snapshot: {latest[1]}" if latest else "there was no snapshot")
        count = sum(live["name"] == name for live in shoal.state.sessions())
        print(f"live sessions called {name}: {count}")
    session.close()


def main(args: Args) -> None:
    if args.session:
        return watch(args, args.session, child=None)
    name = f"watched-{os.getpid()}"
    command = [sys.executable, __file__, "--run", name, "--env-id", args.env_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            if child.stdout is None or child.stdout.readline() != "started\n":
                raise SystemExit("the run did not start; its error message is above")
            watch(args, name, child)
        finally:
            child.kill()


if __name__ == "__main__":
    args = Args.parse()
    if args.run:
        run(args)
    else:
        main(args)
