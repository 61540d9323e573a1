"""One lease: its acquire, its renewals and its release, as the background thread does them (docs/http.md, "Leases").

Invariants:
- `end` counts from before the request was sent whose answer has promised it. The server has taken 4 % off.
- A lease that any thread has found to be over stays over.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Literal, cast

from ._background import Background, native, now
from ._errors import Busy, Lost, LostReason, Misuse, NotPermitted, QueueFull, SignalboxError, TimedOut, Unreachable
from ._http import REFUSED, Answer, Hopeless, LimitReached, Servers, Token

CLEANUP_S = 10.0
"""How long a release is repeated at least."""

POLL_S_MAX = 5.0
"""How long one request waits for a change at most."""

REFUSALS: Mapping[str, tuple[type[SignalboxError], str]] = {
    "busy": (Busy, "in use; try again later, or wait longer"),
    "paused": (Busy, "paused by an administrator; try again later"),
    "timed_out": (TimedOut, "in use for as long as the request has waited; try again later, or wait longer"),
    "queue_full": (QueueFull, "as many requests wait as may; try again later"),
    "not_permitted": (NotPermitted, "this client may not acquire it; check its token"),
    "unauthorized": (NotPermitted, "the token is wrong or has expired; make one with signalbox token create"),
    "too_many_wrong_tokens": (NotPermitted, "too many wrong tokens were shown; make one with signalbox token create"),
}

LOSSES = {
    "expired": "the lease was not renewed in time",
    "unreachable": "no server has answered in time",
    "not_permitted": "the client may no longer acquire it",
    "revoked": "an administrator has revoked it",
    "removed": "an administrator has removed the semaphore",
    "canceled": "an administrator has canceled the request",
}


@dataclass(frozen=True)
class Event:
    """Something that has happened to a lease. What does not belong to its kind is None."""

    kind: Literal["waiting", "acquired", "renewed", "revoking", "lost", "released"]
    """It waits in the queue; it is held; the server has renewed it; an administrator takes it away after a grace
    period; it is over without a release; the program has released it."""
    names: tuple[str, ...]
    """What is acquired, in the order of the claims."""
    position: int | None = None
    """The place in the queue, of `waiting`: 1 is served next. None if the server does not know it yet."""
    fence: int | None = None
    """The fencing token, of all but `waiting`. None if what is released was not held."""
    grace_s: float | None = None
    """How long the permit is still valid, of `revoking`, in seconds."""
    reason: LostReason | None = None
    """Why it is over, of `lost`."""


class Lease:
    """The lease of one acquire. All methods but `left`, `abandon` and `end_now` belong to the background thread."""

    def __init__(
        self,
        background: Background,
        servers: Servers,
        token: Token,
        request: dict[str, Any],
        *,
        unreachable_s: float,
        tell: Callable[[Event], None],
    ) -> None:
        self.background = background
        self.names = tuple(claim["name"] for claim in request["claims"])
        self.fence = 0
        self.slots: tuple[tuple[int, ...], ...] = ()
        self.reason: LostReason = "expired"
        """Why the lease is over, if it was not released."""
        self.was_released = False
        self.is_revoking = False
        self._servers = servers
        self._token = token
        self._key = secrets.token_hex(16)
        self._request = {"key": self._key, **request}
        self.is_shared: bool = "share" in request
        self._ttl: float = request["ttl_ms"] / 1000
        self._unreachable_s = unreachable_s
        self._tell = tell
        self._lock = native(
            "threading", "RLock"
        )()  # A permit that is collected ends its lease, wherever the thread is.
        self._end = 0.0
        self._is_over = False
        self._acquiring: asyncio.Task[Any] | None = None
        self._work: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None

    @property
    def described(self) -> str:
        """The names, for messages."""
        return ", ".join(f'"{name}"' for name in self.names)

    @property
    def _poll_ms(self) -> int:
        return int(min(self._ttl / 4, POLL_S_MAX) * 1000)

    def _hedge(self, poll_ms: int) -> float:
        """After how long without an answer to a request that waits for `poll_ms`, another server is asked as well."""
        return poll_ms / 1000 + min(self._ttl / 8, 1.0)

    def left(self) -> float:
        """How many seconds longer the lease is valid without another answer; 0 if it is over."""
        with self._lock:
            left = self._end - now()
            if left <= 0:
                self._is_over = True
            return 0.0 if self._is_over else left

    def lost(self) -> Lost:
        """The failure of a lease that is over."""
        if self.was_released:
            return Lost(f"the permit of {self.described} was released: acquire again", "released")
        why = LOSSES.get(self.reason, self.reason)
        return Lost(f"the permit of {self.described} is lost: {why}; others may hold it, so stop the work", self.reason)

    def end_now(self) -> None:
        """The program no longer believes in the lease."""
        with self._lock:
            self._is_over = True

    def _extend(self, end: float, is_final: bool = False) -> bool:
        """Moves the end, which only a revocation moves to an earlier time. False if the lease is over."""
        with self._lock:
            if self._is_over or self._end <= now():
                self._is_over = True
                return False
            self._end = end if is_final else max(self._end, end)
            return True

    async def acquire(self, wait_s: float) -> bool:
        """Acquires; from then on, the lease is renewed. False: the work of the single flight is done."""
        self._acquiring = asyncio.current_task()
        self._servers.leases.add(self)
        try:
            if self._servers.is_closed:
                raise self._closed()
            is_held = await self._acquire(now() + wait_s + self._unreachable_s)
        except LimitReached as error:
            self._begin_release()
            raise self._refused(error.answer) from None
        except (asyncio.CancelledError, Unreachable, TimedOut):
            self._begin_release()
            if self._servers.is_closed:
                raise self._closed() from None
            raise
        except Hopeless as error:
            self._servers.leases.discard(self)
            raise error.failure(f"cannot acquire {self.described}: {error}") from None
        except BaseException:
            self._servers.leases.discard(self)
            raise
        finally:
            self._acquiring = None
        if is_held:
            self._work = asyncio.ensure_future(self._keep())
        else:
            self._begin_release()
        return is_held

    async def _acquire(self, give_up: float) -> bool:
        may_reread = True
        poll_ms = 0  # An answer comes at once, so that a server that does not answer is left soon.
        while True:
            request = {**self._request, "poll_ms": poll_ms}
            deadline = min(give_up, now() + self._unreachable_s)
            try:
                answer = await self._servers.ask("acquire", request, self._hedge(poll_ms), deadline)
            except LimitReached:
                raise
            except Unreachable as error:
                raise Unreachable(
                    f"cannot acquire {self.described}: no server was reachable for {self._unreachable_s:g} s, "
                    f"nothing is held; check the servers and the network (last attempt: {error})"
                ) from None
            if answer.status == 200:
                if answer.body["state"] == "done":
                    return False
                if self._hold(answer):
                    return True
            elif answer.status == 202:
                poll_ms = self._poll_ms
                if "place" in answer.body:
                    self._request["place"] = answer.body["place"]
                self._tell(Event("waiting", self.names, position=answer.body.get("position")))
            elif answer.status in REFUSED and may_reread and self._token_differs(answer):
                may_reread = False
            else:
                raise self._refused(answer)
            if now() > give_up:
                raise TimedOut(f"cannot acquire {self.described}: it was not granted in time; try again later")

    def _hold(self, answer: Answer) -> bool:
        """Begins to believe in the lease. False if the answer is so late that its time is over."""
        end = answer.sent + answer.body["valid_ms"] / 1000
        if end <= now():
            return False
        with self._lock:
            self._end = end
        self.fence = int(answer.body["grant"])
        self.slots = tuple(tuple(slots) for slots in answer.body["slots"])
        granted_ms, asked_ms = answer.body["ttl_ms"], self._request["ttl_ms"]
        if granted_ms < asked_ms:
            self._servers.warn_once(
                f"the server grants a ttl of {granted_ms / 1000:g} s instead of {asked_ms / 1000:g} s"
            )
        self._tell(Event("acquired", self.names, fence=self.fence))
        return True

    def _closed(self) -> Misuse:
        return Misuse(f"cannot acquire {self.described}: the client is closed")

    def _refused(self, answer: Answer) -> SignalboxError:
        if answer.code == "limit_reached":
            return Busy(f"cannot acquire {self.described}: {answer.message}")
        if answer.code in ("canceled", "revoked", "removed"):
            self.reason = cast(LostReason, answer.code)
            return Lost(f"cannot acquire {self.described}: {LOSSES[answer.code]}", self.reason)
        failure, advice = REFUSALS.get(answer.code, (Misuse, answer.message))
        if failure is NotPermitted and not answer.token:
            advice = "the client has no token; give it one by token_file or SIGNALBOX_TOKEN_FILE"
        return failure(f"cannot acquire {self.described}: {advice}")

    def _token_differs(self, answer: Answer) -> bool:
        """Whether there is another token than the one of the request that was refused."""
        self._token.read()
        return self._token.value != answer.token

    async def _keep(self) -> None:
        """Renews until the lease is over, and reports that."""
        reason = await self._renew()
        if not self.was_released:
            self.reason = reason
            self.end_now()
            self._servers.leases.discard(self)
            self._tell(Event("lost", self.names, fence=self.fence, reason=reason))

    async def _renew(self) -> LostReason:
        """Why the lease is over, which is not later than its end."""
        reason: LostReason = "unreachable"
        refusals = 0
        while (left := self.left()) > 0:
            request = {"keys": [self._key], "poll_ms": self._poll_ms}
            try:
                answer = await self._servers.ask("renew", request, self._hedge(self._poll_ms), now() + left)
            except Unreachable:
                continue
            lease: dict[str, Any] = answer.body["leases"][0] if answer.status == 200 else {"state": "not_permitted"}
            state = lease["state"]
            if state == "lost":
                return cast(LostReason, lease.get("reason", "expired"))
            if state == "revoking":
                if self._extend(answer.sent + lease["valid_ms"] / 1000, is_final=True):
                    self.is_revoking = True
                    self._tell(Event("revoking", self.names, fence=self.fence, grace_s=lease["grace_ms"] / 1000))
                    await asyncio.sleep(self.left())
                return "revoked"
            if state == "held":
                reason, refusals = "unreachable", 0
                if not self._extend(answer.sent + lease["valid_ms"] / 1000):
                    return "expired"
                self._tell(Event("renewed", self.names, fence=self.fence))
            elif not self._token_differs(answer):
                # Refused: the token may be replaced before the lease ends. Wrong tokens are not repeated often.
                reason, refusals = "not_permitted", refusals + 1
                await asyncio.sleep(min(self.left(), refusals * random.uniform(0.5, 1) * self._ttl / 8))
        return reason

    def abandon(self) -> None:
        """Gives up what is acquired or held, without waiting."""
        self.background.loop().call_soon_threadsafe(self._begin_release)
        self.was_released = True
        self.end_now()

    async def release(self, wait_s: float, is_done: bool) -> None:
        """Releases, and waits for the answer for a limited time; after that, it continues in the background."""
        await asyncio.wait([self._begin_release(is_done)], timeout=wait_s)

    def close(self) -> asyncio.Task[None]:
        """Releases; an acquire that is under way fails."""
        if self._acquiring:
            self._acquiring.cancel()
        return self._begin_release()

    def _begin_release(self, is_done: bool = False) -> asyncio.Task[None]:
        if self._releasing is None:
            self.end_now()
            self.was_released = True
            self._servers.leases.add(self)
            if self._work:
                self._work.cancel()
            self._releasing = asyncio.ensure_future(self._release({"done": True} if is_done else {}))
        return self._releasing

    async def _release(self, fields: Mapping[str, bool]) -> None:
        # After its time to live, the lease is over in any case.
        request = {"key": self._key, **fields}
        try:
            await self._servers.ask("release", request, 1.0, now() + max(self._ttl, CLEANUP_S))
        except Unreachable:
            pass
        else:
            self._tell(Event("released", self.names, fence=self.fence or None))
        finally:
            self._servers.leases.discard(self)
