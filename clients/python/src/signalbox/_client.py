"""The client for programs without an event loop, and what it shares with the one for asyncio."""

from __future__ import annotations

import contextvars
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Literal, TypeVar, cast, overload

from ._background import background, result
from ._errors import Busy, Lost, LostReason, Misuse, QueueFull, SignalboxError, TimedOut
from ._http import Servers, Token
from ._lease import Event, Lease

TTL = timedelta(seconds=30)
"""How long a lease lasts without a renewal, unless a request says otherwise."""

RELEASE_S = 5.0
"""How long a release waits for its answer."""

CLAIMS_MAX = 64

NAME_BYTES_MAX = 65_535

LABEL_BYTES_MAX = 255

WHOLE_MAX = (1 << 32) - 1
"""The largest number of a request, also of milliseconds."""

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")


def _whole(what: str, value: int, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Misuse(f"{what} is {value!r}: use a whole number")
    if value < least:
        raise Misuse(f"{what} is {value}: use {least} or more")
    if value > WHOLE_MAX:
        raise Misuse(f"{what} is {value}: use {WHOLE_MAX} or less")
    return value


def _millis(what: str, time: timedelta, least: timedelta) -> int:
    if not isinstance(time, timedelta):
        raise Misuse(f"{what} is {time!r}: use a timedelta, such as timedelta(seconds=30)")
    if time < least:
        raise Misuse(f"{what} is {time / timedelta(seconds=1):g} s: use {least / timedelta(seconds=1):g} s or more")
    if (millis := -(-time // timedelta(milliseconds=1))) > WHOLE_MAX:  # Up, so that only 0 becomes 0.
        raise Misuse(f"{what} is {time}: use 49 days or less")
    return millis


def _text(what: str, value: str, bytes_max: int) -> str:
    if not isinstance(value, str) or not value:
        raise Misuse(f"{what} is {value!r}: use a text")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise Misuse(f"{what} is {value!a}, which has no form in UTF-8: use other characters") from None
    if length > bytes_max:
        raise Misuse(f"{what} has {length} bytes: use {bytes_max} or less")
    return value


@dataclass(frozen=True)
class Claim:
    """Some resources of one name.

    `maximum` is how many may be in use at once; it is needed unless an administrator has declared the name.
    `slot` asks for a certain slot of a semaphore with slots.
    """

    name: str
    maximum: int | None = None
    resources: int = 1
    slot: int | None = None

    def _fields(self) -> dict[str, Any]:
        """The claim as JSON."""
        fields: dict[str, Any] = {
            "name": _text("a name", self.name, NAME_BYTES_MAX),
            "resources": _whole("resources", self.resources, 1),
        }
        if self.maximum is not None:
            fields["maximum"] = _whole("maximum", self.maximum, 1)
        if self.slot is not None:
            fields["slot"] = _whole("slot", self.slot, 0)
        return fields


class BaseClient:
    """The configuration of a client, and its requests."""

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        token_over_plain: bool | None = None,
        ca: str | None = None,
        label: str | None = None,
        unreachable_after: timedelta = timedelta(seconds=10),
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Connects to nothing yet, and starts no thread.

        `urls` are those of all nodes, in a list or with commas between them; `http://127.0.0.1:11217` unless given.
        They may have a path, as of a proxy. `token_over_plain` permits sending the token to other machines without TLS.
        `SIGNALBOX_URL`, `SIGNALBOX_TOKEN_FILE`, or else `SIGNALBOX_TOKEN`, `SIGNALBOX_CA` and
        `SIGNALBOX_TOKEN_OVER_PLAIN=1` are used for what is not given. Raises Misuse if one of them is wrong, or a file
        has no token. `label` is shown to administrators. An acquire tries for `unreachable_after` to reach a server.
        `on_event` is called on a thread of its own, with the context (`contextvars`) of the acquire.
        """
        if urls is None:
            urls = os.environ.get("SIGNALBOX_URL") or "http://127.0.0.1:11217"
        urls = urls.split(",") if isinstance(urls, str) else urls
        if not urls:
            raise Misuse("urls is empty: use the URL of each node, or None for SIGNALBOX_URL")
        if token is not None and token_file is not None:
            raise Misuse("token and token_file are both given: use one of them")
        if token is None and token_file is None:
            token_file = os.environ.get("SIGNALBOX_TOKEN_FILE") or None
            token = None if token_file else os.environ.get("SIGNALBOX_TOKEN") or None
        self._background = background()
        self._token = Token(token, token_file)
        self._servers = Servers(
            self._background,
            urls,
            self._token,
            os.environ.get("SIGNALBOX_CA") or None if ca is None else ca,
            os.environ.get("SIGNALBOX_TOKEN_OVER_PLAIN") == "1" if token_over_plain is None else token_over_plain,
        )
        self._unreachable_s = _millis("unreachable_after", unreachable_after, timedelta(0)) / 1000
        self._label = label
        self._on_event = on_event

    def _close(self) -> Future[None] | None:
        """Begins to close the client. In a child of a fork, it is the parent's."""
        self._servers.is_closed = True
        if self._background.forked or not self._background.is_started:
            return None
        return self._background.submit(functools.partial(self._servers.close, RELEASE_S))

    def _request(
        self,
        name: str | Claim | Sequence[Claim],
        *,
        maximum: int | None,
        ttl: timedelta,
        wait: timedelta,
        queue_max: int | None = None,
        is_shared: bool = False,
        label: str | None = None,
    ) -> dict[str, Any]:
        """An acquire as JSON. Raises Misuse for what no server accepts, with this client's names of the parameters."""
        if isinstance(name, str):
            name = Claim(name, maximum)
        elif maximum is not None:
            raise Misuse("maximum belongs to a name: pass it to each Claim")
        claims = [name] if isinstance(name, Claim) else name
        if not isinstance(claims, Sequence) or not all(isinstance(claim, Claim) for claim in claims):
            raise Misuse(f"{name!r} is acquired: use a name, a Claim or a list of Claims")
        if not 1 <= len(claims) <= CLAIMS_MAX:
            raise Misuse(f"{len(claims)} claims are acquired: use 1 to {CLAIMS_MAX}")
        request: dict[str, Any] = {
            "claims": [claim._fields() for claim in claims],
            "ttl_ms": _millis("ttl", ttl, timedelta(seconds=1)),
            "wait_ms": _millis("wait", wait, timedelta(0)),
        }
        if queue_max is not None:
            request["queue_max"] = _whole("queue_max", queue_max, 0)
        if label := label or self._label:
            request["label"] = _text("label", label, LABEL_BYTES_MAX)
        if is_shared:
            request["share"] = True
        return request

    def _skipped(self, name: str, *, on_busy: str, **request: Any) -> tuple[type[SignalboxError], ...]:
        """The failures after which a decorated function is not called. Raises Misuse as the acquire would."""
        if callable(name):
            raise Misuse('limit has no name: use it as in @client.limit("reports", maximum=1)')
        if on_busy not in ("raise", "skip"):
            raise Misuse(f'on_busy is {on_busy!r}: use "raise" or "skip"')
        self._request(name, **request)
        return (Busy, TimedOut, QueueFull) if on_busy == "skip" else ()

    def _lease(self, request: dict[str, Any], tell_permit: Callable[[Lease, str], None]) -> Lease:
        context = contextvars.copy_context()

        def tell(event: Event) -> None:
            tell_permit(lease, event.kind)
            if self._on_event:
                self._background.call(functools.partial(context.run, self._on_event, event))

        lease = Lease(
            self._background, self._servers, self._token, request, unreachable_s=self._unreachable_s, tell=tell
        )
        return lease


class BasePermit:
    """What is held, as far as the client knows."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def _here(self) -> Lease:
        self._lease.background.loop()  # Raises in the child of a fork.
        return self._lease

    def _release(self, is_done: bool) -> Future[None] | None:
        """Begins to release the permit, unless it is released. The release of a lost permit is not awaited."""
        lease = self._here()
        if is_done and not lease.is_shared:
            raise Misuse(f"the permit of {lease.described} is not one of acquire_shared: release it with release()")
        if lease.was_released:
            return None
        was_lost = lease.left() <= 0
        # First, so that a signal whose handler raises leaves a permit that is released, or one that is to be.
        releasing = lease.background.submit(functools.partial(lease.release, RELEASE_S, is_done))
        lease.was_released = True
        lease.end_now()
        return None if was_lost else releasing

    def _enter(self) -> None:
        if self._here().was_released:
            raise Misuse(f"the permit of {self._lease.described} was released: acquire again")

    def _lost_in_block(self, error: BaseException | None) -> Lost | None:
        """What a block raises at its end, before it releases the permit."""
        lease = self._here()
        return None if error or lease.was_released or lease.left() > 0 else lease.lost()

    def __del__(self) -> None:
        lease = self._lease
        if not (lease.was_released or lease.background.forked or sys.is_finalizing()):
            with suppress(RuntimeError):  # The program ends.
                lease.abandon()
            # At the end, since warnings may be errors.
            warnings.warn(f"the permit of {lease.described} was never released", ResourceWarning, 2, self)

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
            raise lease.lost()


class _Listeners:
    """What the program wants to be called when something happens to a permit, each once."""

    def __init__(self) -> None:
        self._calls: dict[str, list[Callable[[], object]]] = {"lost": [], "revoking": []}

    def add(self, kind: str, call: Callable[[], object]) -> None:
        self._calls[kind].append(call)

    def tell(self, lease: Lease, kind: str) -> None:
        calls = self._calls.get(kind, [])
        with suppress(IndexError):  # Two threads may tell it.
            while calls:
                lease.background.call(calls.pop(0))


class Permit(BasePermit):
    """Resources that are held until the `with` block ends. A background thread renews the lease."""

    def __init__(self, lease: Lease, listeners: _Listeners) -> None:
        super().__init__(lease)
        self._listeners = listeners

    def on_lost(self, function: Callable[[LostReason], object]) -> None:
        """Calls a function with the reason when the permit is lost, on a thread of the client; at once if it was."""
        lease = self._here()
        self._listeners.add("lost", lambda: function(lease.reason))
        if not self.is_held and not lease.was_released:
            self._listeners.tell(lease, "lost")

    def on_revoking(self, function: Callable[[timedelta], object]) -> None:
        """Calls a function when an administrator takes the permit away, on a thread of the client; at once if so.

        The function is given how long the permit is still valid, so that the work can stop in order and release it.
        """
        lease = self._here()
        self._listeners.add("revoking", lambda: function(timedelta(seconds=lease.left())))
        if lease.is_revoking and self.is_held:
            self._listeners.tell(lease, "revoking")

    def release(self) -> None:
        """Releases the permit, and waits 5 s for that at most. It can be repeated, and raises nothing but Misuse."""
        if releasing := self._release(is_done=False):
            result(releasing)

    def release_done(self) -> None:
        """Like `release`, for a permit of `acquire_shared`: the result is there, and all that wait are informed."""
        if releasing := self._release(is_done=True):
            result(releasing)

    def __enter__(self) -> Permit:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error and self._lease.background.forked:
            return  # The child of a fork ends within the block of its parent, which has the permit.
        lost = self._lost_in_block(error)
        self.release()
        if lost:
            raise lost


class Client(BaseClient):
    """A client, which all threads of a program can share.

    ```python
    with Client().acquire("gpu", maximum=2, wait=timedelta(minutes=1)) as permit:
        permit.check()
    ```
    """

    def close(self) -> None:
        """Gives all acquires up, and releases all permits. It waits 5 s for that at most, and can be repeated.

        It is the end of a `with` block of the client. A closed client raises Misuse when it is asked to acquire.
        """
        if closing := self._close():
            result(closing)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        listeners = _Listeners()
        lease = self._lease(self._request(name, wait=wait, **request), listeners.tell)
        acquiring = None
        try:
            acquiring = self._background.submit(functools.partial(lease.acquire, wait.total_seconds()))
            return Permit(lease, listeners) if result(acquiring) else None
        except SignalboxError:
            raise
        except BaseException:
            # Such as KeyboardInterrupt, or a timeout of the program's framework.
            if acquiring:
                acquiring.cancel()
            lease.abandon()
            raise

    def try_acquire(
        self,
        name: str | Claim | Sequence[Claim],
        *,
        maximum: int | None = None,
        ttl: timedelta = TTL,
        label: str | None = None,
    ) -> Permit | None:
        """Like `acquire`, but without waiting; None if the resources are in use."""
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
        """Acquires a name for a single flight, for programs that do not use `share`.

        Make the result while you have the permit, and end with `release_done`. None: another client has made the result
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

    @overload
    def limit(
        self,
        name: str,
        *,
        maximum: int | None = ...,
        wait: timedelta = ...,
        ttl: timedelta = ...,
        on_busy: Literal["raise"] = ...,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...

    @overload
    def limit(
        self,
        name: str,
        *,
        maximum: int | None = ...,
        wait: timedelta = ...,
        ttl: timedelta = ...,
        on_busy: Literal["skip"],
    ) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...

    def limit(
        self,
        name: str,
        *,
        maximum: int | None = None,
        wait: timedelta = timedelta(0),
        ttl: timedelta = TTL,
        on_busy: Literal["raise", "skip"] = "raise",
    ) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
        """Decorates a function, such as a task of Celery or RQ, or the `handle` of a command of Django.

        A call holds one of the name. With `on_busy="skip"`, a call that finds it in use returns None, and the
        function is not called. Raises Misuse for a generator or an async function, whose work is done after the call.
        """
        failures = self._skipped(name, maximum=maximum, wait=wait, ttl=ttl, on_busy=on_busy)

        def decorate(function: Callable[P, T]) -> Callable[P, T | None]:
            if kind := worked_later(function):
                advice = "use signalbox.aio" if kind == "an async function" else "acquire within it"
                raise Misuse(f'the limit "{name}" is of {kind}, which works after the call has returned: {advice}')

            @functools.wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> T | None:
                try:
                    permit = self.acquire(name, maximum=maximum, wait=wait, ttl=ttl)
                except failures:
                    return None
                with permit:
                    return function(*args, **kwargs)

            return limited

        return decorate


def worked_later(function: Callable[..., object]) -> str | None:
    """The kind of a function whose call only begins its work; None for others."""
    while isinstance(function, functools.partial):
        function = function.func
    for called in (function, getattr(function, "__call__", None)):  # noqa: B004 An object may be called as a function.
        if inspect.iscoroutinefunction(called):
            return "an async function"
        if inspect.isasyncgenfunction(called):
            return "an async generator"
        if inspect.isgeneratorfunction(called):
            return "a generator"
    return None
