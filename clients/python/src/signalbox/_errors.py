"""The failures of the client. Each message says what was requested, what the state is, and what to do."""

from __future__ import annotations

from typing import Literal

LostReason = Literal["expired", "unreachable", "not_permitted", "revoked", "removed", "canceled", "released"]
"""Why a permit, or the place in the queue, is over; a later server may add others."""


class SignalboxError(Exception):
    """The base class of all failures of the client and of its requests."""


class Busy(SignalboxError):
    """The resources are in use, or the semaphore is paused, and the request does not wait. Or the server is full."""


class TimedOut(SignalboxError):
    """The resources were in use for as long as the request has waited."""


class QueueFull(SignalboxError):
    """As many requests wait as the request permits (`queue_max`) or as the server allows."""


class Lost(SignalboxError):
    """The permit, or the place in the queue, has ended without a release. Others may hold it: stop the work."""

    def __init__(self, message: str, reason: LostReason) -> None:
        super().__init__(message)
        self.reason: LostReason = reason
        """`expired` (not renewed in time, as after a suspension), `unreachable` (no server has answered in time),
        `not_permitted`, `revoked`, `removed` or `canceled` (by an administrator: the permit, the semaphore, the wait),
        or `released` (by the program); a later server may add others."""

    def __reduce__(self) -> tuple[type[Lost], tuple[str, LostReason]]:
        return type(self), (str(self), self.reason)  # For queues of tasks, which pickle what a task raises.


class Unreachable(SignalboxError):
    """No server has answered, or the certificates of all are not trusted. Nothing is held."""


class NotPermitted(SignalboxError):
    """The token is missing, wrong or expired, or may not acquire the name."""


class Misuse(SignalboxError):
    """A fault of the program: the request or a setting is wrong, or the client is closed or a parent's."""
