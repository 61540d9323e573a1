"""The client for asyncio.

Renewals are done on a thread, so that a blocked event loop neither loses a lease nor believes in a lost one.

```python
async with signalbox.aio.Client().acquire("gpu", maximum=2) as permit:
    await permit.guard(work())
```
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Generic, Literal, TypeVar, cast, overload

from ._client import TTL, BaseClient, BasePermit, Claim, worked_later
from ._errors import Busy, LostReason, Misuse, SignalboxError
from ._lease import Lease

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")


class Permit(BasePermit):
    """Resources that are held until the `async with` block ends."""

    def __init__(self, lease: Lease, lost: asyncio.Future[LostReason], revoking: asyncio.Future[None]) -> None:
        super().__init__(lease)
        self._lost = lost
        self._revoking = revoking

    def on_lost(self, function: Callable[[LostReason], object]) -> None:
        """Calls a function with the reason when the permit is lost, in the event loop."""
        self._lost.add_done_callback(lambda lost: None if lost.cancelled() else function(lost.result()))

    def on_revoking(self, function: Callable[[timedelta], object]) -> None:
        """Calls a function when an administrator takes the permit away, in the event loop.

        The function is given how long the permit is still valid, so that the work can stop in order and release it.
        """
        lease = self._here()

        def tell(revoking: asyncio.Future[None]) -> None:
            if not revoking.cancelled():
                function(timedelta(seconds=lease.left()))

        self._revoking.add_done_callback(tell)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Does some work as long as the permit is valid. When it is lost, the work is cancelled, and Lost is raised.

        While an administrator takes it away, it is valid: `on_revoking` tells how long.
        The work takes no step without the permit: also before the loss is known to the event loop, the clock decides.
        """
        lease = self._here()
        task = asyncio.ensure_future(_Guarded(lease, work).run())

        def cancel(lost: asyncio.Future[LostReason]) -> None:
            if not lost.cancelled():
                task.cancel()

        self._lost.add_done_callback(cancel)
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            if self._lost.done() and not self._lost.cancelled():
                raise lease.lost() from None
            raise
        finally:
            self._lost.remove_done_callback(cancel)

    async def release(self) -> None:
        """Releases the permit, and waits 5 s for that at most. It can be repeated, and raises nothing but Misuse.

        A task that is cancelled meanwhile releases it all the same.
        """
        if releasing := self._release(is_done=False):
            await asyncio.shield(asyncio.wrap_future(releasing))

    async def release_done(self) -> None:
        """Like `release`, for a permit of `acquire_shared`: the result is there, and all that wait are informed."""
        if releasing := self._release(is_done=True):
            await asyncio.shield(asyncio.wrap_future(releasing))

    async def __aenter__(self) -> Permit:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error and self._lease.background.forked:
            return  # The child of a fork ends within the block of its parent, which has the permit.
        lost = self._lost_in_block(error)
        await self.release()
        if lost:
            raise lost


class _Guarded(Generic[T]):
    """Work that takes its steps only as long as a lease is valid."""

    def __init__(self, lease: Lease, work: Coroutine[Any, Any, T]) -> None:
        self._lease = lease
        self._work = work

    async def run(self) -> T:
        result: T = await self
        return result

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = functools.partial(self._work.send, None)
        while True:
            is_lost = self._lease.left() <= 0
            try:
                awaited = self._work.throw(asyncio.CancelledError()) if is_lost else step()
            except StopIteration as done:
                result: T = done.value
                return result
            except asyncio.CancelledError:
                if is_lost:
                    raise self._lease.lost() from None
                raise
            try:
                step = functools.partial(self._work.send, (yield awaited))
            except BaseException as error:
                step = functools.partial(self._work.throw, error)


class _Acquiring(Coroutine[Any, Any, Permit]):
    """An acquire: `await` it for a permit, make a task of it, or use it in `async with`."""

    def __init__(self, acquire: Coroutine[Any, Any, Permit]) -> None:
        self._acquire = acquire
        self._permit: Permit | None = None

    def send(self, value: Any) -> Any:
        return self._acquire.send(value)

    def throw(self, *error: Any) -> Any:
        return self._acquire.throw(*error)

    def close(self) -> None:
        self._acquire.close()

    def __await__(self) -> Generator[Any, Any, Permit]:
        return self._acquire.__await__()

    async def __aenter__(self) -> Permit:
        self._permit = await self._acquire
        return self._permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._permit:
            await self._permit.__aexit__(kind, error, trace)


class Client(BaseClient):
    """A client, which all tasks of a program can share. Its arguments are those of `signalbox.Client`."""

    async def close(self) -> None:
        """Gives all acquires up, and releases all permits, as `signalbox.Client.close`."""
        if closing := self._close():
            await asyncio.shield(asyncio.wrap_future(closing))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def acquire(
        self,
        name: str | Claim | Sequence[Claim],
        *,
        maximum: int | None = None,
        wait: timedelta = timedelta(0),
        ttl: timedelta = TTL,
        queue_max: int | None = None,
        label: str | None = None,
    ) -> _Acquiring:
        """Acquires, as `signalbox.Client.acquire`. A task that is cancelled meanwhile leaves nothing behind."""

        async def acquire() -> Permit:
            permit = await self._acquire(
                name, maximum=maximum, ttl=ttl, wait=wait, queue_max=queue_max, label=label, is_shared=False
            )
            return cast(Permit, permit)  # Only a request of a single flight has another answer.

        return _Acquiring(acquire())

    async def _acquire(self, name: str | Claim | Sequence[Claim], *, wait: timedelta, **request: Any) -> Permit | None:
        loop = asyncio.get_running_loop()
        lost: asyncio.Future[LostReason] = loop.create_future()
        revoking: asyncio.Future[None] = loop.create_future()

        def tell(lease: Lease, kind: str) -> None:
            def finish() -> None:
                if kind == "lost" and not lost.done():
                    lost.set_result(lease.reason)
                if kind == "revoking" and not revoking.done():
                    revoking.set_result(None)

            if kind in ("lost", "revoking"):
                with suppress(RuntimeError):  # The loop is closed.
                    loop.call_soon_threadsafe(finish)

        lease = self._lease(self._request(name, wait=wait, **request), tell)
        try:
            acquiring = self._background.submit(functools.partial(lease.acquire, wait.total_seconds()))
            return Permit(lease, lost, revoking) if await asyncio.wrap_future(acquiring) else None
        except SignalboxError:
            raise
        except BaseException:
            lease.abandon()
            raise

    async def try_acquire(
        self,
        name: str | Claim | Sequence[Claim],
        *,
        maximum: int | None = None,
        ttl: timedelta = TTL,
        label: str | None = None,
    ) -> Permit | None:
        """Like `acquire`, but without waiting; None if the resources are in use."""
        try:
            return await self.acquire(name, maximum=maximum, ttl=ttl, label=label)
        except Busy:
            return None

    async def acquire_shared(
        self,
        name: str,
        *,
        wait: timedelta = timedelta(0),
        ttl: timedelta = TTL,
        queue_max: int | None = None,
    ) -> Permit | None:
        """Acquires a name for a single flight, as `signalbox.Client.acquire_shared`."""
        return await self._acquire(name, maximum=1, ttl=ttl, wait=wait, queue_max=queue_max, is_shared=True)

    async def share(
        self,
        name: str,
        find: Callable[[], Awaitable[T | None]],
        make: Callable[[Permit], Coroutine[Any, Any, T]],
        *,
        wait: timedelta = timedelta(0),
        ttl: timedelta = TTL,
        queue_max: int | None = None,
    ) -> T:
        """A single flight, as `signalbox.Client.share`; `make` runs in `Permit.guard`."""
        while (found := await find()) is None:
            permit = await self.acquire_shared(name, wait=wait, ttl=ttl, queue_max=queue_max)
            if permit is None:
                continue
            async with permit:
                found = await find()  # Another client may have made it between the two.
                if found is None:
                    found = await permit.guard(make(permit))
                await permit.release_done()
                break
        return found

    @overload
    def limit(
        self,
        name: str,
        *,
        maximum: int | None = ...,
        wait: timedelta = ...,
        ttl: timedelta = ...,
        on_busy: Literal["raise"] = ...,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]: ...

    @overload
    def limit(
        self,
        name: str,
        *,
        maximum: int | None = ...,
        wait: timedelta = ...,
        ttl: timedelta = ...,
        on_busy: Literal["skip"],
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T | None]]]: ...

    def limit(
        self,
        name: str,
        *,
        maximum: int | None = None,
        wait: timedelta = timedelta(0),
        ttl: timedelta = TTL,
        on_busy: Literal["raise", "skip"] = "raise",
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T | None]]]:
        """Decorates an async function, as `signalbox.Client.limit`; its calls run in `Permit.guard`.

        Raises Misuse for all other functions.
        """
        failures = self._skipped(name, maximum=maximum, wait=wait, ttl=ttl, on_busy=on_busy)

        def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T | None]]:
            kind = worked_later(function)
            if kind != "an async function":
                advice = "use signalbox.Client" if kind is None else "acquire within it"
                raise Misuse(f'the limit "{name}" is of {kind or "a function that is not async"}: {advice}')

            @functools.wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> T | None:
                try:
                    permit = await self.acquire(name, maximum=maximum, wait=wait, ttl=ttl)
                except failures:
                    return None
                async with permit:
                    return await permit.guard(function(*args, **kwargs))

            return limited

        return decorate


__all__ = ["Client", "Permit"]
