"""The client for programs without an event loop, and what it shares with the one for asyncio."""

from __future__ import annotations

import contextvars
import functools
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Callable, Literal, TypeVar, cast

from ._background import background, result
from ._errors import Busy, Lost, Misuse, SignalboxError
from ._http import Servers, Token
from ._lease import Event, Lease

TTL = timedelta(seconds=30)
"""How long a lease lasts without a renewal, unless a request says otherwise."""

RELEASE_S = 5.0
"""How long a release waits for its answer."""

T = TypeVar("T")


@dataclass(frozen=True)
class Claim:
    """Some resources of one name.

    `maximum` is how many may be in use at once; it is needed unless an administrator has declared the name.
    `slot` wants one certain slot of a semaphore with slots.
    """

    name: str
    maximum: int | None = None
    resources: int = 1
    slot: int | None = None

    def _fields(self) -> dict[str, Any]:
        """The claim as JSON."""
        return {field: value for field, value in vars(self).items() if value is not None}


def _millis(what: str, time: timedelta) -> int:
    if not isinstance(time, timedelta):
        raise Misuse(f"{what} is {time!r}: use a timedelta, such as timedelta(seconds=30)")
    return int(time / timedelta(milliseconds=1))


class BaseClient:
    """The configuration of a client, and its requests."""

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        token_over_plain: bool = False,
        ca: str | None = None,
        label: str | None = None,
        unreachable_after: timedelta = timedelta(seconds=10),
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Connects to nothing yet, and starts no thread.

        `urls` are those of all nodes, in a list or with commas between them; `http://127.0.0.1:11217` unless given.
        `SIGNALBOX_URL`, `SIGNALBOX_TOKEN`, `SIGNALBOX_TOKEN_FILE`, `SIGNALBOX_CA` and `SIGNALBOX_TOKEN_OVER_PLAIN=1`
        are used for what is not given. `token_over_plain` permits to send the token to other machines without TLS.
        `label` is shown to administrators. An acquire tries for `unreachable_after` to reach a server.
        `on_event` is called on a thread of its own, with the context (`contextvars`) of the acquire.
        """
        urls = urls or os.environ.get("SIGNALBOX_URL") or "http://127.0.0.1:11217"
        if not (token or token_file):
            token, token_file = os.environ.get("SIGNALBOX_TOKEN"), os.environ.get("SIGNALBOX_TOKEN_FILE")
        self._token = Token(token, token_file)
        self._servers = Servers(
            urls.split(",") if isinstance(urls, str) else urls,
            self._token,
            ca or os.environ.get("SIGNALBOX_CA"),
            token_over_plain or os.environ.get("SIGNALBOX_TOKEN_OVER_PLAIN") == "1",
        )
        self._unreachable_s = _millis("unreachable_after", unreachable_after) / 1000
        self._label = label
        self._on_event = on_event
        self._background = background()

    def _lease(
        self,
        name: str | Claim | Sequence[Claim],
        on_lease_event: Callable[[Event], None],
        *,
        maximum: int | None,
        ttl: timedelta,
        wait: timedelta,
        queue_max: int | None,
        is_shared: bool,
        label: str | None = None,
    ) -> Lease:
        if isinstance(name, str):
            name = Claim(name, maximum)
        elif maximum is not None:
            raise Misuse("maximum belongs to a name: pass it to each Claim")
        claims = [name] if isinstance(name, Claim) else name
        ttl_ms = _millis("ttl", ttl)
        if ttl_ms < 1000:
            raise Misuse(f"ttl is {ttl}: use a second or more")
        request: dict[str, Any] = {
            "claims": [claim._fields() for claim in claims],
            "ttl_ms": ttl_ms,
            "wait_ms": _millis("wait", wait),
        }
        optional = {"queue_max": queue_max, "label": label or self._label, "share": is_shared or None}
        request.update({field: value for field, value in optional.items() if value is not None})

        context = contextvars.copy_context()

        def tell(event: Event) -> None:
            on_lease_event(event)
            if self._on_event:
                self._background.call(functools.partial(context.run, self._on_event, event))

        return Lease(
            self._background, self._servers, self._token, request, unreachable_s=self._unreachable_s, tell=tell
        )


class BasePermit:
    """What is held, as far as the client knows."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def _here(self) -> Lease:
        self._lease.background.loop()  # Raises in the child of a fork.
        return self._lease

    def _release(self, is_done: bool) -> Future[None] | None:
        """Begins to release the permit, unless it is released."""
        lease = self._here()
        if is_done and not lease.is_shared:
            raise Misuse(f"the permit of {lease.described} is not one of acquire_shared: release it with release()")
        if lease.was_released:
            return None
        lease.end_now()
        lease.was_released = True
        return lease.background.submit(functools.partial(lease.release, RELEASE_S, is_done))

    def __del__(self) -> None:
        lease = self._lease
        if not (lease.was_released or lease.background.forked):
            warnings.warn(f"the permit of {lease.described} was never released", ResourceWarning, 2, self)
            with suppress(RuntimeError):  # The program ends.
                lease.abandon()

    @property
    def fence(self) -> int:
        """The fencing token: a store that refuses lower ones than it has seen is safe from earlier holders."""
        return self._lease.fence

    @property
    def slots(self) -> tuple[tuple[int, ...], ...]:
        """The slots of each claim, which no other permit has; empty unless a semaphore has slots."""
        return self._lease.slots

    @property
    def time_left(self) -> timedelta:
        """How long the permit is valid without another answer of the server; zero if it is over. It reads the clock."""
        return timedelta(seconds=self._here().left())

    @property
    def is_held(self) -> bool:
        """Whether the permit is valid now. It reads the clock."""
        return self._here().left() > 0

    def check(self) -> None:
        """Raises Lost unless the permit is valid now. It reads the clock, and can be called before each step."""
        lease = self._here()
        if lease.left() <= 0:
            if lease.was_released:
                raise Lost(f"the permit of {lease.described} was released: acquire again", "released")
            raise lease.lost()


class Permit(BasePermit):
    """Resources that are held until the `with` block ends. A background thread renews the lease."""

    def __init__(self, lease: Lease, on_lost: list[Callable[[str], object]]) -> None:
        super().__init__(lease)
        self._on_lost = on_lost

    def on_lost(self, function: Callable[[str], object]) -> None:
        """Calls a function with the reason when the permit is lost, on a thread of the client; at once if it is."""
        self._on_lost.append(function)
        if not self.is_held and not self._lease.was_released:
            with suppress(ValueError):  # The loss has called it meanwhile.
                self._on_lost.remove(function)
                self._lease.background.call(functools.partial(function, self._lease.reason))

    def release(self) -> None:
        """Releases the permit, and waits 5 s for that at most. It can be repeated, and raises nothing but Misuse."""
        if releasing := self._release(is_done=False):
            result(releasing)

    def release_done(self) -> None:
        """As `release` of a permit of `acquire_shared`: the result is there, and all that wait for it are told so."""
        if releasing := self._release(is_done=True):
            result(releasing)

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._here()
        was_lost = not lease.was_released and lease.left() <= 0
        self.release()
        if was_lost and kind is None:
            raise lease.lost()


class Client(BaseClient):
    """A client, which all threads of a program can share.

    ```python
    with Client().acquire("gpu", maximum=2, wait=timedelta(minutes=1)) as permit:
        permit.check()
    ```
    """

    def acquire(
        self,
        name: str | Claim | Sequence[Claim],
        *,
        maximum: int | None = None,
        wait: timedelta = timedelta(0),
        ttl: timedelta = TTL,
        queue_max: int | None = None,
        label: str | None = None,
    ) -> Permit:
        """Acquires one of a name, a claim, or all claims of a list or none, and waits in the queue for at most `wait`.

        `label` is shown to administrators instead of the client's.
        Raises Busy, TimedOut, QueueFull, NotPermitted, Unreachable, Lost (an administrator ended the wait) or Misuse.
        """
        permit = self._acquire(
            name, maximum=maximum, ttl=ttl, wait=wait, queue_max=queue_max, label=label, is_shared=False
        )
        return cast(Permit, permit)  # Only a request of a single flight has another answer.

    def _acquire(self, name: str | Claim | Sequence[Claim], *, wait: timedelta, **request: Any) -> Permit | None:
        on_lost: list[Callable[[str], object]] = []

        def on_event(event: Event) -> None:
            if event.kind == "lost":
                while on_lost:
                    self._background.call(functools.partial(on_lost.pop(0), event.reason or ""))

        lease = self._lease(name, on_event, wait=wait, **request)
        acquiring = self._background.submit(functools.partial(lease.acquire, wait.total_seconds()))
        try:
            is_held = result(acquiring)
        except SignalboxError:
            raise
        except BaseException:
            # Such as KeyboardInterrupt, or a timeout of the program's framework.
            acquiring.cancel()
            lease.abandon()
            raise
        return Permit(lease, on_lost) if is_held else None

    def try_acquire(
        self,
        name: str | Claim | Sequence[Claim],
        *,
        maximum: int | None = None,
        ttl: timedelta = TTL,
        label: str | None = None,
    ) -> Permit | None:
        """As `acquire` without waiting; None if the resources are in use."""
        try:
            return self.acquire(name, maximum=maximum, ttl=ttl, label=label)
        except Busy:
            return None

    def acquire_shared(
        self,
        name: str,
        *,
        wait: timedelta = timedelta(0),
        ttl: timedelta = TTL,
        queue_max: int | None = None,
    ) -> Permit | None:
        """Acquires a name for a single flight, of which `share` has the steps.

        The permit is to make the result with, and ends with `release_done`. None: another client has made the result
        while this one waited; nothing is held. Raises as `acquire`.
        """
        return self._acquire(name, maximum=1, ttl=ttl, wait=wait, queue_max=queue_max, is_shared=True)

    def share(
        self,
        name: str,
        find: Callable[[], T | None],
        make: Callable[[Permit], T],
        *,
        wait: timedelta = timedelta(0),
        ttl: timedelta = TTL,
        queue_max: int | None = None,
    ) -> T:
        """A single flight: of many clients that need the same result, one makes it, and the others wait for it.

        `find` looks for the result, and returns None if it is not there. `make` makes it, puts it where `find` looks,
        and returns it. If it raises, another client makes the result. Raises as `acquire`, and what the two raise.
        """
        while (found := find()) is None:
            permit = self.acquire_shared(name, wait=wait, ttl=ttl, queue_max=queue_max)
            if permit is None:
                continue
            with permit:
                found = find()  # Another client may have made it between the two.
                if found is None:
                    found = make(permit)
                permit.release_done()
                break
        return found

    def limit(
        self,
        name: str,
        *,
        maximum: int | None = None,
        wait: timedelta = timedelta(0),
        ttl: timedelta = TTL,
        on_busy: Literal["raise", "skip"] = "raise",
    ) -> Callable[[Callable[..., T]], Callable[..., T | None]]:
        """Decorates a function, such as a task of Celery or RQ, or the `handle` of a command of Django.

        A call holds one of the name. With `on_busy="skip"`, a call that finds it in use returns None, and the
        function is not called.
        """

        def decorate(function: Callable[..., T]) -> Callable[..., T | None]:
            @functools.wraps(function)
            def limited(*args: Any, **kwargs: Any) -> T | None:
                try:
                    permit = self.acquire(name, maximum=maximum, wait=wait, ttl=ttl)
                except skipped(on_busy):
                    return None
                with permit:
                    return function(*args, **kwargs)

            return limited

        return decorate


def skipped(on_busy: str) -> tuple[type[SignalboxError], ...]:
    """The failures of an acquire after which a decorated function is not called."""
    from ._errors import QueueFull, TimedOut

    if on_busy not in ("raise", "skip"):
        raise Misuse(f'on_busy is {on_busy!r}: use "raise" or "skip"')
    return (Busy, TimedOut, QueueFull) if on_busy == "skip" else ()
