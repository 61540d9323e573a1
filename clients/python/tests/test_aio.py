"""The client for asyncio."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import time
import weakref
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from pathlib import Path
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


def test_an_acquire_may_be_a_task(server: Server, name: str) -> None:
    async def work() -> None:
        client = aio.Client(server.url)
        async with await asyncio.create_task(client.acquire(name, maximum=1)):
            assert server.used(name) == (1, 0)
            with pytest.raises(signalbox.Busy):
                await asyncio.wait_for(client.acquire(name, maximum=1), 30)
            waiting = asyncio.create_task(client.acquire(name, maximum=1, wait=timedelta(hours=1)))
            await asyncio.to_thread(server.eventually, name, (1, 1))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.to_thread(server.eventually, name, (1, 0))
        await client.close()

    run(work())


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

    async def work(permit: aio.Permit) -> None:
        steps.append("before")
        server.ask("revoke", {"grant": str(permit.fence), "grace_ms": 100})
        while permit.is_held:
            time.sleep(0.01)
        await asyncio.sleep(0)
        steps.append("after")

    async def main() -> None:
        permit = await aio.Client(server.url).acquire(name, maximum=1)
        with pytest.raises(signalbox.Lost):
            await permit.guard(work(permit))
        await permit.release()

    run(main())
    assert steps == ["before"]


def test_guarded_work_ends_with_a_release(server: Server, name: str) -> None:
    async def main() -> None:
        permit = await aio.Client(server.url).acquire(name, maximum=1)
        work = asyncio.ensure_future(permit.guard(release_and_go_on(permit)))
        with pytest.raises(signalbox.Lost) as lost:
            await work
        assert lost.value.reason == "released"
        with pytest.raises(signalbox.Lost) as lost:
            await permit.guard(asyncio.sleep(0))
        assert lost.value.reason == "released"
        with pytest.raises(signalbox.Misuse, match=name):
            async with permit:
                pytest.fail("the block was entered")

    async def release_and_go_on(permit: aio.Permit) -> None:
        await permit.release()
        pytest.fail("the work continued without the permit")

    run(main())


def test_guarded_work_leaves_nothing_at_the_permit(server: Server, name: str) -> None:
    """So a leader may guard each of its steps."""

    class Result:
        pass

    async def step() -> Result:
        return Result()

    async def work() -> None:
        async with aio.Client(server.url).acquire(name, maximum=1) as permit:
            result = weakref.ref(await permit.guard(step()))
            await asyncio.sleep(0)
            gc.collect()
            assert result() is None

    run(work())


def test_the_grace_of_a_revocation_is_told(server: Server, name: str) -> None:
    async def main() -> None:
        async with aio.Client(server.url).acquire(name, maximum=1) as permit:
            told: asyncio.Queue[timedelta] = asyncio.Queue()
            permit.on_revoking(told.put_nowait)
            await asyncio.to_thread(server.ask, "revoke", {"grant": str(permit.fence), "grace_ms": 20_000})
            assert await told.get() <= timedelta(seconds=20)
            permit.on_revoking(told.put_nowait)
            assert await told.get() <= timedelta(seconds=20)
            assert await permit.guard(asyncio.sleep(0, "done")) == "done"

    run(main())


def test_the_end_of_a_block_does_not_wait_for_the_release_of_a_lost_permit(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signalbox._client.RELEASE_S", 3600)
    monkeypatch.setattr("signalbox._lease.CLEANUP_S", 3600)
    server = Server(tmp_path)

    async def main() -> None:
        lost = asyncio.Event()
        async with aio.Client(server.url).acquire(name, maximum=1, ttl=timedelta(seconds=1)) as permit:
            permit.on_lost(lambda _: lost.set())
            server.process.send_signal(signal.SIGSTOP)
            await lost.wait()

    try:
        with pytest.raises(signalbox.Lost):
            run(main())
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.stop()


def test_a_child_of_a_fork_may_exit_in_a_block_of_its_parent(server: Server, name: str) -> None:
    async def main() -> None:
        async with aio.Client(server.url).acquire(name, maximum=1) as permit:
            child = os.fork()
            if child == 0:
                try:
                    await permit.__aexit__(SystemExit, SystemExit(), None)
                    os._exit(7)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            permit.check()

    run(main())


def test_a_permit_that_is_collected_is_released(server: Server, name: str) -> None:
    async def main() -> None:
        permits = [await aio.Client(server.url).acquire(name, maximum=1)]
        permits[0].on_lost(print)
        permits[0].on_revoking(print)
        with pytest.warns(ResourceWarning, match=name):
            permits.clear()
        await asyncio.to_thread(server.eventually, name, (0, 0))

    run(main())


def test_a_client_that_is_closed_holds_nothing(server: Server, name: str) -> None:
    async def main() -> None:
        async with aio.Client(server.url) as client:
            permit = await client.acquire(name, maximum=1)
            waiting = asyncio.ensure_future(wait(client))
            await asyncio.to_thread(server.eventually, name, (1, 1))
            await client.close()
            assert server.used(name) == (0, 0)
            with pytest.raises(signalbox.Misuse, match="closed"):
                await waiting
            assert not permit.is_held
            with pytest.raises(signalbox.Misuse, match="closed"):
                await client.acquire(name, maximum=1)

    async def wait(client: aio.Client) -> None:
        await client.acquire(name, maximum=1, wait=timedelta(minutes=1))

    run(main())


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
