"""The driver of the client for the conformance suite (conformance/README.md): `driver.py`, or `driver.py aio`."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import signalbox
from signalbox import aio

FAILURES = {
    signalbox.Busy: "busy",
    signalbox.TimedOut: "timed_out",
    signalbox.QueueFull: "queue_full",
    signalbox.Lost: "lost",
    signalbox.Unreachable: "unreachable",
    signalbox.NotPermitted: "not_permitted",
    signalbox.Misuse: "misuse",
}


def say(**message: Any) -> None:
    os.write(1, (json.dumps(message) + "\n").encode())


def wanted(command: dict[str, Any]) -> dict[str, Any]:
    return {time: timedelta(milliseconds=command[f"{time}_ms"]) for time in ("ttl", "wait") if f"{time}_ms" in command}


def claims(command: dict[str, Any]) -> list[signalbox.Claim]:
    return [signalbox.Claim(**claim) for claim in command["claims"]]


def belief(permit: signalbox.Permit | aio.Permit) -> dict[str, Any]:
    left_ms = int(permit.time_left / timedelta(milliseconds=1))
    try:
        permit.check()
    except signalbox.Lost:
        return {"held": False}
    return {"held": True, "left_ms": left_ms}


def checked(command: dict[str, Any], permit: signalbox.Permit | aio.Permit) -> dict[str, Any]:
    time.sleep(command.get("block_ms", 0) / 1000)
    if command.get("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)
    return belief(permit)


def acquired(command: dict[str, Any], permit: signalbox.Permit | aio.Permit | None) -> None:
    if not permit:
        say(id=command["id"], done=True)
        return
    label = command["permit"]
    permit.on_revoking(lambda left: say(event="revoking", permit=label, grace_ms=left // timedelta(milliseconds=1)))
    permit.on_lost(lambda reason: say(event="lost", permit=label, reason=reason))
    say(id=command["id"], **belief(permit), fence=str(permit.fence), slots=permit.slots)


def refused_in_a_child(permit: signalbox.Permit) -> bool:
    """Whether a fork of this process may neither check nor release the permit."""
    child = os.fork()
    if child == 0:
        refusals = 0
        for use in (permit.check, permit.release):
            try:
                use()
            except signalbox.Misuse:
                refusals += 1
        os._exit(refusals)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def threaded() -> None:
    client = signalbox.Client()
    permits: dict[str, signalbox.Permit] = {}
    kept: list[signalbox.Permit] = []

    def pairs(command: dict[str, Any]) -> list[int]:
        times_us = []
        for _ in range(command["count"]):
            began = time.perf_counter()
            permit = client.acquire(claims(command), **wanted(command))
            if command["keep"]:
                kept.append(permit)
            else:
                permit.release()
            times_us.append(round((time.perf_counter() - began) * 1e6))
        gc.collect()
        return times_us

    def acquire(command: dict[str, Any]) -> None:
        try:
            if command.get("share"):
                permit = client.acquire_shared(command["claims"][0]["name"], **wanted(command))
            else:
                permit = client.acquire(claims(command), **wanted(command))
            if permit:
                permits[command["permit"]] = permit
            acquired(command, permit)
        except signalbox.SignalboxError as error:
            say(id=command["id"], failure=FAILURES[type(error)])

    say(driver="python", capabilities=["defaults", "fork", "pairs", "push", "renew", "share", "tls", "token"])
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        label = command.get("permit", "")
        if command["do"] == "acquire":
            threading.Thread(target=acquire, args=[command], daemon=True).start()
            continue
        if command["do"] == "exit":
            break
        if command["do"] == "check":
            answer = checked(command, permits[label])
        elif command["do"] == "release":
            permit = permits[label]
            (permit.release_done if command.get("done") else permit.release)()
        elif command["do"] == "fork":
            answer = {"refused": refused_in_a_child(permits[label])}
        elif command["do"] == "pairs":
            answer = {"times_us": pairs(command)}
        say(id=command["id"], **answer)


async def asynchronous() -> None:
    client = aio.Client()
    permits: dict[str, aio.Permit] = {}
    acquires: dict[str, asyncio.Task[None]] = {}
    kept: list[aio.Permit] = []

    async def pairs(command: dict[str, Any]) -> list[int]:
        times_us = []
        for _ in range(command["count"]):
            began = time.perf_counter()
            permit = await client.acquire(claims(command), **wanted(command))
            if command["keep"]:
                kept.append(permit)
            else:
                await permit.release()
            times_us.append(round((time.perf_counter() - began) * 1e6))
        gc.collect()
        return times_us

    async def acquire(command: dict[str, Any]) -> None:
        try:
            if command.get("share"):
                permit = await client.acquire_shared(command["claims"][0]["name"], **wanted(command))
            else:
                permit = await client.acquire(claims(command), **wanted(command))
            if permit:
                permits[command["permit"]] = permit
            acquired(command, permit)
        except asyncio.CancelledError:
            say(id=command["id"], failure="canceled")
        except signalbox.SignalboxError as error:
            say(id=command["id"], failure=FAILURES[type(error)])

    say(driver="python-aio", capabilities=["cancel", "defaults", "pairs", "push", "renew", "share", "tls", "token"])
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        command = json.loads(line)
        answer: dict[str, Any] = {}
        label = command.get("permit", "")
        if command["do"] == "acquire":
            acquires[command["permit"]] = asyncio.ensure_future(acquire(command))
            continue
        if command["do"] == "exit":
            break
        if command["do"] == "check":
            answer = checked(command, permits[label])
        elif command["do"] == "release":
            permit = permits[label]
            await (permit.release_done if command.get("done") else permit.release)()
        elif command["do"] == "cancel":
            acquires[label].cancel()
        elif command["do"] == "pairs":
            answer = {"times_us": await pairs(command)}
        say(id=command["id"], **answer)


if __name__ == "__main__":
    if sys.argv[1:] == ["aio"]:
        asyncio.run(asynchronous())
    else:
        threaded()
