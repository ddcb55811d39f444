"""The tools of the page's tests: a browser, its pixels, and the position of a tile in them.

The browser is Debian's chromium, driven by playwright. `make test-viewer` installs playwright and says what
else is needed; without them these tests are skipped. Tests import the fixtures that they use.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from tests.viewer.mock_server import MockServer
from tests.viewer.pictures import decode_png
from tests.viewer.worlds import KINDS, TERRAIN


def rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[at : at + 2], 16) for at in (1, 3, 5))


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
GROUND = np.array([rgb(one[2]) for one in TERRAIN])
FISH = np.array([rgb(one[2]) for one in KINDS])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is missing: make test-viewer")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: make test-viewer")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM)
        yield started
        started.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., MockServer]]:
    with ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(MockServer(*args, **more))


@pytest.fixture
def reef(serve: Callable[..., MockServer]) -> MockServer:
    return serve("reef", size=48, count=60, agents=4)


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; afterwards none may have failed, broken the policy, or asked another host for anything."""
    contexts, faults = [], []

    def visit(
        server: MockServer, link: str = "", expect_lost: bool = False, empty: bool = False, **more: Any
    ) -> Any:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | more))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)

        def note(message: Any) -> None:
            # The icon may still be loading when the server is lost.
            is_of_the_loss = "WebSocket" in message.text or "net::ERR_CONNECTION_" in message.text
            if not (expect_lost and is_of_the_loss):
                faults.append(f"{message.type}: {message.text}")

        page.on("console", note)
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        base = server.url.partition("?")[0]
        home = (base, base.replace("http:", "ws:"), "blob:", "data:")
        page.on("request", lambda one: one.url.startswith(home) or faults.append(f"asked for {one.url}"))
        page.on("response", lambda one: one.status < 400 or faults.append(f"{one.status}: {one.url}"))
        page.goto(server.url + link)
        until(page, f"window.shoal !== undefined && (shoal.tick !== null || {str(empty).lower()})")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert faults == []


def until(page: Any, condition: str) -> None:
    """Waits in Python: a condition that the page itself evaluates would break its policy."""
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"it never was: {condition}"
        page.wait_for_timeout(20)


def freeze(server: MockServer, page: Any) -> Any:
    """Nothing moves from here on; the world as the page shows it."""
    server.hold = True
    env = page.evaluate("shoal.env")
    until(page, f"shoal.tick === {settled(server, env)}")
    page.wait_for_timeout(150)
    return server.worlds[env]


def settled(server: MockServer, env: int) -> int:
    time.sleep(0.3)
    return int(server.worlds[env].tick)


def drawn(page: Any) -> Any:
    """The stage as it is on the screen."""
    return decode_png(page.locator("#stage").screenshot())[..., :3]


def tile(page: Any, row: int, column: int) -> tuple[int, int]:
    x, y = page.evaluate(f"shoal.toCanvas({row}, {column})")
    return int(y), int(x)
