"""Makes the screenshots of the viewer in docs/pictures: `make screenshots`.

    real runs: PPO learns CartPole; Reef with random actions --> shoal watch --> chromium --> viewer_*.png

    python -m tests.viewer.screenshots FOLDER [--seconds S] [NAME ...]

Each file says in a text chunk which program made it. tests/viewer/test_screenshots.py makes them again.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.viewer.browsing import CHROMIUM, until

PROGRAM = "tests/viewer/screenshots.py"

LEARN = """
import os, sys, time
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the networks are small
import shoal
from shoal.learner import Learner
envs = shoal.make_vec("CartPole-v1", 64, session=sys.argv[1])
learner = Learner(envs, seed=1, steps=2_000_000)
print("there", flush=True)
while True:
    learner.collect()
    learner.update()
    time.sleep(0.7)  # it would be over in three seconds
"""
REEF = """
import sys, time
import shoal
envs = shoal.make_vec("Reef-v0", 16, session=sys.argv[1], height=80, width=120, num_agents=24, num_enemies=40)
envs.reset(seed=3)
print("there", flush=True)
while True:
    envs.step(envs.action_space.sample())
    time.sleep(0.02)
"""
RUNS = {"cartpole": LEARN, "reef": REEF}
WATCH = """
import sys
from shoal.cli import main
main(["watch", sys.argv[1], "--no-browser"])
"""
DESKTOP, PHONE = (1440, 900), (390, 844)


@dataclass(frozen=True)
class Shot:
    """One picture: of which run, how, and what is done in the page before."""

    run: str
    scheme: str
    size: tuple[int, int]
    link: str = ""
    prepare: Callable[[Any], None] = lambda page: None
    ratio: int = 1

    @property
    def pixels(self) -> tuple[int, int]:
        return self.size[0] * self.ratio, self.size[1] * self.ratio


def select_agent(page: Any) -> None:
    """Selects the first fish, zooms in and follows it."""
    page.wait_for_selector("#table-body button")
    page.click("#table-body tr:first-child button")
    page.click("#tab-agent")
    page.check("#follow")
    for _ in range(2):
        page.keyboard.press("+")
    page.wait_for_timeout(1500)


def replay_best(page: Any) -> None:
    """Waits for a recording, and stops in the middle of a replay of the best one."""
    page.wait_for_selector("[data-kind=best]", timeout=120_000)
    page.click("[data-kind=best] button")
    until(page, "shoal.replay !== null && shoal.replay.index > 1")
    page.keyboard.press(" ")
    page.locator("#scrub").fill(str(int(page.evaluate("shoal.frames")) // 2))
    page.locator("#recordings-card").scroll_into_view_if_needed()
    page.wait_for_timeout(300)


def replay_best_on_a_phone(page: Any) -> None:
    replay_best(page)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(300)


SHOTS = {
    "viewer_dark": Shot("reef", "dark", DESKTOP, "#tab=entities", select_agent),
    "viewer_light": Shot("cartpole", "light", DESKTOP),
    "viewer_replay_dark": Shot("cartpole", "dark", DESKTOP, "", replay_best),
    "viewer_phone_light": Shot("reef", "light", PHONE, ratio=2),
    "viewer_phone_dark": Shot("cartpole", "dark", PHONE, "", replay_best_on_a_phone, ratio=2),
}


def take(browser: Any, url: str, shot: Shot) -> bytes:
    """Opens the page and returns the screenshot; raises if the page says anything on the console."""
    width, height = shot.size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=shot.scheme,
        device_scale_factor=shot.ratio,
        has_touch=shot.size == PHONE,
    )
    said: list[str] = []
    try:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda one: said.append(one.text))
        page.on("pageerror", lambda one: said.append(str(one)))
        page.goto(url + shot.link)
        until(page, "window.shoal !== undefined && shoal.tick !== null && shoal.bins.count > 3")
        page.wait_for_timeout(2500)  # the thumbnails of other environments
        shot.prepare(page)
        if said:
            raise RuntimeError(f"the page said {said}")
        return bytes(page.screenshot())
    finally:
        context.close()


def sign(data: bytes, name: str) -> bytes:
    """Returns the PNG with the program and the name of the shot in a text chunk."""
    body = f"Software\0{PROGRAM} {name}".encode("latin-1")
    chunk = struct.pack(">I", len(body)) + b"tEXt" + body + struct.pack(">I", zlib.crc32(b"tEXt" + body))
    return data[:33] + chunk + data[33:]  # after the head


def read_signature(data: bytes) -> str:
    """Returns what `sign` has written; empty if nothing was."""
    at = 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"tEXt" and data[at + 8 :].startswith(b"Software\0"):
            return data[at + 17 : at + 8 + size].decode("latin-1")
        at += 12 + size
    return ""


@contextmanager
def watch(run: str) -> Iterator[str]:
    """Starts a run and its viewer; yields the viewer's link."""
    processes = []
    try:
        for source in (RUNS[run], WATCH):
            command = [sys.executable, "-c", source, run]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            if not processes[-1].stdout.readline():
                raise RuntimeError(f"the process of {run} has ended with {processes[-1].wait()}")
        yield processes[-1].stdout.readline().strip()
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def make(folder: Path, names: list[str], seconds: float) -> None:
    """Writes the screenshots of these names, each run going on for `seconds` before."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, tempfile.TemporaryDirectory(prefix="shoal-shots-") as sessions:
        os.environ["SHOAL_SESSION_DIR"] = sessions  # no other session is listed in the pictures
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        for run in dict.fromkeys(SHOTS[name].run for name in names):
            with watch(run) as link, browser.new_context() as context:
                page = context.new_page()  # is there from the beginning, so that episodes are recorded
                page.goto(link)
                page.wait_for_timeout(seconds * 1000)
                for name in [name for name in names if SHOTS[name].run == run]:
                    (folder / f"{name}.png").write_bytes(sign(take(browser, link, SHOTS[name]), name))
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SHOTS)}")
    parser.add_argument("--seconds", type=float, default=40.0, help="how long a run goes on before")
    args = parser.parse_args()
    make(args.folder, args.names or list(SHOTS), args.seconds)
