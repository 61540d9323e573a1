"""The client for asyncio."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from conftest import Server

import signalbox
from signalbox import aio


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def test_a_block_holds_and_releases(server: Server, name: str) -> None:
    async def main() -> None:
        client = aio.Client(server.url)
        async with client.acquire(name, maximum=1) as permit:
            permit.check()
            assert await client.try_acquire(name, maximum=1) is None
        assert server.used(name) == (0, 0)
        permit = await client.acquire(name, maximum=1)
        await permit.release()
        await permit.release()
        assert server.used(name) == (0, 0)

    run(main())


def test_a_cancelled_acquire_leaves_nothing(server: Server, name: str) -> None:
    """Wherever it is cancelled."""

    async def main() -> None:
        client = aio.Client(server.url)
        for turns in range(12):
            acquire = asyncio.ensure_future(client.try_acquire(name, maximum=1))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            acquire.cancel()
            try:
                permit = await acquire
            except asyncio.CancelledError:
                pass
            else:
                assert permit
                await permit.release()
            await asyncio.to_thread(server.eventually, name, (0, 0))
        async with client.acquire(name, maximum=1):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(wait(client), 0.2)
            await asyncio.to_thread(server.eventually, name, (1, 0))

    async def wait(client: aio.Client) -> None:
        await client.acquire(name, maximum=1, wait=timedelta(minutes=1))

    run(main())


def test_guarded_work_ends_with_the_permit(server: Server, name: str) -> None:
    async def main() -> None:
        client = aio.Client(server.url)
        async with client.acquire(name, maximum=1) as permit:
            assert await permit.guard(asyncio.sleep(0.01, "done")) == "done"
            with pytest.raises(ZeroDivisionError):
                await permit.guard(divide())
        permit = await client.acquire(name, maximum=1)
        reasons: list[str] = []
        permit.on_lost(reasons.append)
        work = asyncio.ensure_future(permit.guard(asyncio.sleep(60)))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(server.ask, "revoke", {"grant": str(permit.fence), "grace_ms": 0})
        with pytest.raises(signalbox.Lost, match="revoked"):
            await work
        assert reasons == ["revoked"]
        with pytest.raises(signalbox.Lost):
            await permit.guard(asyncio.sleep(0))
        with pytest.raises(signalbox.Lost):
            async with permit:
                pass

    async def divide() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    run(main())


def test_guarded_work_takes_no_step_after_a_loss(server: Server, name: str) -> None:
    """Also if the event loop was blocked until then, and does not know of the loss."""
    steps: list[str] = []

    async def work() -> None:
        steps.append("before")
        time.sleep(0.3)
        await asyncio.sleep(0)
        steps.append("after")

    async def main() -> None:
        permit = await aio.Client(server.url).acquire(name, maximum=1)
        server.ask("revoke", {"grant": str(permit.fence), "grace_ms": 100})
        with pytest.raises(signalbox.Lost):
            await permit.guard(work())
        await permit.release()

    run(main())
    assert steps == ["before"]


def test_guarded_work_can_be_cancelled(server: Server, name: str) -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    async def main() -> None:
        async with aio.Client(server.url).acquire(name, maximum=1) as permit:
            task = asyncio.ensure_future(permit.guard(work()))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert cleaned == ["up"]
            permit.check()

    run(main())


def test_a_decorated_function_is_limited(server: Server, name: str) -> None:
    async def main() -> None:
        client = aio.Client(server.url)

        @client.limit(name, maximum=1, on_busy="skip")
        async def twice(number: int) -> int:
            assert await twice(number) is None
            return 2 * number

        assert await twice(4) == 8
        assert await client.limit(name, maximum=1)(functools.partial(twice, 4))() is None
        with pytest.raises(TypeError):
            await twice("4", 5)  # type: ignore[call-arg, arg-type] # The types of the function are kept.

    run(main())


def test_only_an_async_function_is_decorated() -> None:
    client = aio.Client()

    def synchronous() -> None: ...

    async def generator() -> AsyncIterator[int]:
        yield 1

    for function in (synchronous, functools.partial(synchronous), generator):
        with pytest.raises(signalbox.Misuse, match="limit"):
            client.limit("misused", maximum=1)(function)  # type: ignore[arg-type]
    with pytest.raises(signalbox.Misuse, match="limit"):
        client.limit(synchronous)  # type: ignore[call-overload]
    with pytest.raises(signalbox.Misuse, match="on_busy"):
        client.limit("misused", maximum=1, on_busy="ignore")  # type: ignore[call-overload]


def test_of_those_that_need_a_result_one_makes_it(server: Server, name: str) -> None:
    results: list[str] = []
    makes: list[aio.Permit] = []

    async def find() -> str | None:
        return results[0] if results else None

    async def fail(permit: aio.Permit) -> str:
        await asyncio.to_thread(server.eventually, name, (1, 3))
        raise ZeroDivisionError

    async def make(permit: aio.Permit) -> str:
        makes.append(permit)
        await asyncio.to_thread(server.eventually, name, (1, 2))
        results.append("made")
        return "made"

    async def main() -> None:
        client = aio.Client(server.url)
        failing = asyncio.ensure_future(client.share(name, find, fail))
        await asyncio.to_thread(server.eventually, name, (1, 0))
        shares = [client.share(name, find, make, wait=timedelta(seconds=30)) for _ in range(3)]
        assert await asyncio.gather(*shares) == ["made"] * 3
        with pytest.raises(ZeroDivisionError):
            await failing
        assert len(makes) == 1
        assert server.used(name) == (0, 0)

    run(main())
