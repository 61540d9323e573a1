"""The thread that does all work of the client: one for each process, with an event loop of its own.

So neither a program that computes nor an event loop that is blocked delays renewals; only code that keeps the
interpreter's lock does. Another thread calls what the program has given to be called, which may take long.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Callable, TypeVar

from ._errors import Misuse

T = TypeVar("T")

log = logging.getLogger("signalbox")

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Seconds of a clock that counts while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
elif hasattr(time, "CLOCK_MONOTONIC"):  # macOS, where it counts in suspension.

    def now() -> float:
        """Seconds of a clock that counts while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)
else:  # Windows.

    def now() -> float:
        """Seconds of a clock that counts while the machine is suspended."""
        return time.monotonic()


def native(module: str, name: str) -> Any:
    """Something of the standard library, even where gevent has replaced it."""
    if "gevent.monkey" in sys.modules:
        from gevent import monkey

        return monkey.get_original(module, name)
    return getattr(importlib.import_module(module), name)


def _start(run: Callable[[], None]) -> None:
    """Starts a thread, which does not keep the program from ending."""
    native("_thread", "start_new_thread")(run, ())


def result(future: Future[T]) -> T:
    """Waits for a result of the background; with gevent, other greenlets run meanwhile."""
    if "gevent.monkey" in sys.modules and not future.done():
        import gevent.event

        done = gevent.event.Event()
        with gevent.get_hub().loop.async_() as watcher:
            watcher.start(done.set)
            future.add_done_callback(lambda _: watcher.send())
            done.wait()
    return future.result()


class Background:
    """The threads of this process."""

    def __init__(self) -> None:
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self.is_started = False
        self._calls = native("queue", "SimpleQueue")()
        self._lock = native("threading", "Lock")()
        self.connections: set[object] = set()
        """All that are open. The thread refers to them, so that no other one collects them, also at a program's end."""
        self.forked = False
        """This is the child of a fork of the process that has the threads."""

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the thread, which is started by the first call."""
        if self.forked:
            raise Misuse("this process is a fork of one that has used the client: make a client after the fork")
        if not self.is_started:  # So that a permit that is collected wherever the thread is does not wait for the lock.
            with self._lock:
                is_first, self.is_started = not self.is_started, True
            if is_first:
                if "gevent.monkey" in sys.modules:
                    import gevent

                    gevent.get_hub()  # The first hub imports modules, in which two threads at a time block each other.
                try:
                    _start(self._call_all)
                    _start(self._run)
                except RuntimeError as error:  # No thread can be started. All calls say so, and none waits for it.
                    self._loop.set_exception(error)
        return result(self._loop)

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        loop.set_debug(False)  # The program could not act on its warnings, such as with -X dev.
        asyncio.set_event_loop(loop)
        self._loop.set_result(loop)
        loop.run_forever()

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Does something in the thread."""
        loop = self.loop()
        return asyncio.run_coroutine_threadsafe(work(), loop)

    def call(self, function: Callable[[], object]) -> None:
        """Calls what the program has given, on a thread that may be blocked."""
        self._calls.put(function)

    def _call_all(self) -> None:
        while True:
            function = self._calls.get()
            try:
                function()
            except Exception:
                log.exception("a callback of the program has failed")


_background = Background()


def background() -> Background:
    """The threads of this process."""
    return _background


def _after_fork() -> None:
    # The threads are the parent's. Clients that know the old object fail; new ones get threads of their own. Those of a
    # parent that has started no thread can be used here, as in modules that a worker imports before it forks.
    global _background  # noqa: PLW0603
    if _background.is_started:
        _background.forked = True
        _background = Background()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


async def resolve(host: str, port: int) -> list[tuple[Any, ...]]:
    """Addresses of a host. A lookup that hangs delays neither the loop nor the end of the program."""
    import socket

    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[tuple[Any, ...]]] = loop.create_future()

    def finish(addresses: list[tuple[Any, ...]] | None, error: OSError | None) -> None:
        if found.done():
            return
        if error:
            found.set_exception(error)
        else:
            found.set_result(addresses or [])

    def look_up() -> None:
        addresses, error = None, None
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as failure:
            error = failure
        except UnicodeError:  # A part of the name is empty or too long.
            error = OSError(f'"{host}" cannot be the name of a host')
        loop.call_soon_threadsafe(finish, addresses, error)

    _start(look_up)
    return await found
