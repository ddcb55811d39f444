"""A cancellation is never lost, whenever it comes; otherwise the server could not stop."""

import asyncio
from types import SimpleNamespace

import pytest

from shoal.viewer.client import Client
from shoal.viewer.waiting import run_within


@pytest.mark.parametrize("turns", range(6))
def test_a_page_woken_and_cancelled_at_the_same_time_is_cancelled(turns):
    async def main():
        feed = SimpleNamespace(
            run=(0, {}), worlds={}, counters=None, history=None, recorded=None, error=(0, "")
        )  # 0: it was told of that
        client = Client(None, feed, list, 1.0)
        task = asyncio.create_task(client.send_all())
        await asyncio.sleep(0.01)
        client.wake.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=1)
        assert done and task.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(6))
def test_a_deadline_loses_no_cancellation(turns):
    async def main():
        event, got_past = asyncio.Event(), []

        async def wait():
            await run_within(10, event.wait())
            got_past.append(True)
            await asyncio.sleep(10)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=1)
        assert done and task.cancelled()

    asyncio.run(main())


def test_run_within_returns_raises_or_times_out_and_ends_its_task():
    ended = []

    async def slow():
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(True)

    async def quick(error=None):
        if error is not None:
            raise error
        return 3

    async def main():
        assert await run_within(1, quick()) == 3
        with pytest.raises(ZeroDivisionError):
            await run_within(1, quick(ZeroDivisionError()))
        with pytest.raises(asyncio.TimeoutError):
            await run_within(0.01, slow())
        await asyncio.sleep(0)
        assert ended == [True]

    asyncio.run(main())
