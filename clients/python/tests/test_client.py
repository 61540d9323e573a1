"""The client for programs without an event loop. The conformance suite has the failures of networks and processes."""

from __future__ import annotations

import asyncio
import functools
import gc
import http.server
import json
import os
import pickle
import queue
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLES, Server

import signalbox
from signalbox._background import background


@pytest.fixture
def client(server: Server) -> signalbox.Client:
    return signalbox.Client(server.url)


def test_a_block_holds_and_releases(server: Server, client: signalbox.Client, name: str) -> None:
    with client.acquire(name, maximum=2) as permit:
        permit.check()
        assert permit.is_held
        assert timedelta(0) < permit.time_left <= timedelta(seconds=30 * 0.96)
        assert permit.fence > 0
        assert server.used(name) == (1, 0)
    assert server.used(name) == (0, 0)
    permit.release()
    with pytest.raises(signalbox.Lost) as lost:
        permit.check()
    assert lost.value.reason == "released"
    assert lost.value.reason != "misspelled"  # type: ignore[comparison-overlap]


def test_failures_are_distinct(client: signalbox.Client, name: str) -> None:
    with client.acquire(name, maximum=1):
        with pytest.raises(signalbox.Busy, match=name):
            client.acquire(name, maximum=1)
        assert client.try_acquire(name, maximum=1) is None
        with pytest.raises(signalbox.TimedOut, match=name):
            client.acquire(name, maximum=1, wait=timedelta(microseconds=1))
        with pytest.raises(signalbox.QueueFull, match=name):
            client.acquire(name, maximum=1, wait=timedelta(seconds=10), queue_max=0)
    with pytest.raises(signalbox.Misuse, match="unknown"):
        client.acquire("unknown")


@pytest.mark.parametrize(
    "fields",
    [
        {"maximum": 0},
        {"maximum": -1},
        {"maximum": "3"},
        {"maximum": True},
        {"maximum": 1 << 32},
        {"wait": 5},
        {"wait": timedelta(seconds=-1)},
        {"wait": timedelta(days=365)},
        {"ttl": timedelta(milliseconds=999)},
        {"ttl": timedelta(days=365)},
        {"queue_max": -1},
        {"label": 5},
        {"label": "ä" * 128},
        {"name": "x" * 65_536},
        {"name": []},
        {"name": ["one", "two"]},
        {"name": [signalbox.Claim(str(number), 1) for number in range(65)]},
        {"name": [signalbox.Claim("both", 1)], "maximum": 1},
        {"name": signalbox.Claim("none", 1, resources=0)},
        {"name": signalbox.Claim("slot", slot=-1)},
        {"name": ""},
        {"name": "\ud800"},
        {"name": 5},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_a_request_that_no_server_accepts_is_not_sent(fields: dict[str, Any]) -> None:
    client = signalbox.Client("http://127.0.0.1:1", unreachable_after=timedelta(seconds=0.1))
    request = {"name": "misused", **fields}
    with pytest.raises(signalbox.Misuse) as misuse:
        client.acquire(**request)
    assert not re.search("_ms|name_hex|objects", str(misuse.value))


def test_a_shorter_lease_is_told_once(client: signalbox.Client, name: str, caplog: pytest.LogCaptureFixture) -> None:
    client.acquire(name, maximum=1).release()
    assert caplog.messages == []
    for _ in range(2):
        with client.acquire(name, maximum=1, ttl=timedelta(hours=3)) as permit:
            assert permit.time_left < timedelta(hours=1)
    assert ["3600" in message for message in caplog.messages] == [True]


def test_no_server(name: str) -> None:
    client = signalbox.Client("http://127.0.0.1:1", unreachable_after=timedelta(seconds=0.3))
    with pytest.raises(signalbox.Unreachable, match=name):
        client.acquire(name, maximum=1)


@pytest.mark.parametrize(
    "urls",
    [
        "127.0.0.1:11217",
        "",
        " ",
        [],
        ["http://127.0.0.1", ""],
        "http://127.0.0.1,",
        "http://a b",
        "http://a?b=c",
        "http://a:b",
        "http://a:0",
        "http://[a",
        "http://user:secret@a",
        "http://user:secret@a:b",
    ],
)
def test_a_url_is_checked(urls: str | list[str]) -> None:
    with pytest.raises(signalbox.Misuse) as wrong:
        signalbox.Client(urls)
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize("ca", ["/nowhere", __file__])
def test_a_file_without_certificates_is_refused(ca: str) -> None:
    with pytest.raises(signalbox.Misuse, match=re.escape(ca)):
        signalbox.Client(ca=ca)


@contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that serves each connection with this function."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve_all() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    serve(connection)

        thread = threading.Thread(target=serve_all)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """The port of a server that sends this answer to each connection, and the first lines that it has received."""
    lines: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            lines.append(stream.readline())
            connection.sendall(answer)

    with serving(serve) as port:
        yield port, lines


def test_a_url_may_have_a_path(name: str) -> None:
    """As that of a proxy."""
    with answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}") as (port, lines):
        with pytest.raises(signalbox.Misuse):
            signalbox.Client(f"http://127.0.0.1:{port}/behind/").acquire(name, maximum=1)
        assert lines == [b"POST /behind/api/v1/lease/acquire HTTP/1.1\r\n"]


def test_a_port_of_another_protocol_is_misuse(server: Server, name: str) -> None:
    """At once, however long the client tries to reach a server."""

    def check(*urls: str) -> None:
        client = signalbox.Client(urls, unreachable_after=timedelta(days=1))
        with pytest.raises(signalbox.Misuse, match=name):
            client.acquire(name, maximum=1)

    check(f"http://{server.address}")
    for answer in (b"-ERR unknown command\r\n", b"ERR", b"\x15\x03\x03\x00\x02\x02\x46"):
        with answering(answer) as (port, _):
            check(f"http://127.0.0.1:{port}", f"http://{server.address}")
            with signalbox.Client([f"http://127.0.0.1:{port}", server.url]).acquire(name, maximum=1):
                pass
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (port, _):
        check(f"https://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "answer",
    [
        b" 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b" 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b" 200 OK\r\nContent-Length: 18\r\n\r\n" + b'{"state": "other"}',
        b" 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b" 204 No Content\r\n\r\n",
        b" 302 Found\r\nContent-Length: 2\r\n\r\n{}",
        b" 403 Forbidden\r\nContent-Length: 4\r\n\r\n" + b'"no"',
        b"\r\n\r\n",
        b" 200 OK\r\n" + b"A: a\r\n" * 200_000,
    ],
)
def test_an_answer_that_is_none_of_signalbox_is_no_answer(answer: bytes, name: str) -> None:
    with answering(b"HTTP/1.1" + answer) as (port, lines):
        with pytest.raises(signalbox.Unreachable, match="signalbox"):
            signalbox.Client(f"http://127.0.0.1:{port}", unreachable_after=timedelta(seconds=1)).acquire(
                name, maximum=1
            )
        assert lines


def test_a_server_without_room_is_not_unreachable(name: str) -> None:
    """So that a program that continues without a permit if no server is there does not continue if there is one."""
    refusal = b'{"error": {"code": "limit_reached", "message": "session.max_sessions=1"}}'
    answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n%b" % (len(refusal), refusal)
    with answering(answer) as (port, lines):
        for urls in ([f"http://127.0.0.1:{port}"], [f"http://127.0.0.1:{port}", "http://127.0.0.1:1"]):
            with pytest.raises(signalbox.Busy, match="max_sessions"):
                signalbox.Client(urls, unreachable_after=timedelta(seconds=2)).acquire(name, maximum=1)
    assert b"POST /api/v1/lease/release HTTP/1.1\r\n" in lines, "an earlier request may still be executed"


def test_a_certificate_that_is_not_trusted_fails_at_once(tmp_path: Path, name: str) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    made = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=test -addext subjectAltName=DNS:other"
    command = ["openssl", "req", "-x509", *made.split(), "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(lambda connection: context.wrap_socket(connection, server_side=True).close()) as port:
        url = f"https://127.0.0.1:{port}"
        # Its authority is unknown; its name is another one.
        for ca in (None, certificate):
            for urls in ([url], [url, f"{url}/other".replace("127.0.0.1", "localhost")]):
                client = signalbox.Client(urls, ca=ca, unreachable_after=timedelta(days=1))
                with pytest.raises(signalbox.Unreachable, match="certificate"):
                    client.acquire(name, maximum=1)


def test_a_loss_is_told_whatever_answers_the_renewals(name: str) -> None:
    held = json.dumps({"state": "held", "valid_ms": 2000, "ttl_ms": 2500, "grant": "1", "slots": []})
    bodies = {"acquire": held, "renew": "{}", "release": "{}"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = bodies[self.path.rpartition("/")[2]].encode()
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever).start()
        lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        permit = signalbox.Client(f"http://127.0.0.1:{listener.server_port}").acquire(name, maximum=1)
        permit.on_lost(lost.put)
        assert lost.get(timeout=15) == "unreachable"
        permit.release()
        listener.shutdown()


def test_a_name_that_no_host_has_is_unreachable(name: str) -> None:
    with pytest.raises(signalbox.Unreachable, match="name of a host"):
        signalbox.Client(f"http://{'a' * 64}:1", unreachable_after=timedelta(seconds=1)).acquire(name, maximum=1)


def test_a_system_without_forks_and_clocks_of_posix(server: Server) -> None:
    program = """
import os
import time

del os.fork, os.register_at_fork
for name in [name for name in dir(time) if name.startswith(("CLOCK_", "clock_"))]:
    delattr(time, name)
import signalbox

with signalbox.Client().acquire("no-posix", maximum=1) as permit:
    print(permit.is_held)
"""
    assert server.python("-c", program).stdout == "True\n"


def test_without_a_further_thread_all_calls_fail(server: Server) -> None:
    program = """
import signalbox
from signalbox import _background

def no_thread(run):
    raise RuntimeError("no thread")

_background._start = no_thread
for _ in range(2):
    try:
        signalbox.Client().acquire("a", maximum=1)
    except RuntimeError as error:
        print(error)
"""
    assert server.python("-c", program).stdout == "no thread\nno thread\n"


def test_a_message_says_what_the_client_was_not_given(name: str) -> None:
    refusal = b'{"error": {"code": "unauthorized", "message": "no"}}'
    with answering(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%b" % (len(refusal), refusal)) as (port, _):
        with pytest.raises(signalbox.NotPermitted, match="SIGNALBOX_TOKEN_FILE"):
            signalbox.Client(f"http://127.0.0.1:{port}").acquire(name, maximum=1)
        with pytest.raises(signalbox.NotPermitted) as wrong:
            signalbox.Client(f"http://127.0.0.1:{port}", token="wrong").acquire(name, maximum=1)
        assert "SIGNALBOX_TOKEN_FILE" not in str(wrong.value)


def test_a_port_that_the_url_does_not_have_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_address(host: str, port: int) -> list[Any]:
        if host == "slow":
            await asyncio.sleep(60)
        raise OSError("no address")

    monkeypatch.setattr("signalbox._http.resolve", no_address)
    for url, port in (("http://host", "port 80"), ("https://host", "port 443"), ("http://slow", "port 80")):
        with pytest.raises(signalbox.Unreachable, match=port):
            signalbox.Client(url, unreachable_after=timedelta(seconds=0.3)).acquire(name, maximum=1)
    with pytest.raises(signalbox.Unreachable) as given:
        signalbox.Client("http://host:1", unreachable_after=timedelta(seconds=0.3)).acquire(name, maximum=1)
    assert "11217" not in str(given.value)


def test_of_a_name_with_several_addresses_one_may_not_answer(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def two(host: str, port: int) -> list[Any]:
        return [(socket.AF_INET, 0, 0, "", (address, port)) for address in ("192.0.2.1", "127.0.0.1")]

    connect = asyncio.open_connection

    async def open_connection(
        host: str, port: int, **options: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if host == "192.0.2.1":
            await asyncio.sleep(3600)
        return await connect(host, port, **options)

    monkeypatch.setattr("signalbox._http.resolve", two)
    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    with signalbox.Client(server.url).acquire(name, maximum=1):
        pass


def test_a_server_that_is_asked_because_another_one_is_late_has_to_answer_at_once(tmp_path: Path, name: str) -> None:
    asked: list[str] = []

    class NotServing(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b'{"error": {"code": "not_serving", "message": "it does not lead"}}')

        def log_message(self, *_: object) -> None:
            pass

    second = http.server.HTTPServer(("127.0.0.1", 0), NotServing)
    threading.Thread(target=second.serve_forever, daemon=True).start()
    first = Server(tmp_path)
    try:
        client = signalbox.Client(f"{first.url},http://127.0.0.1:{second.server_port}")
        permit = client.acquire(name, maximum=1, ttl=timedelta(seconds=3))
        first.process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 15
        while not asked and time.monotonic() < deadline:
            time.sleep(0.02)
        assert asked
        assert not [body for body in asked if "poll_ms" in body]
        first.process.send_signal(signal.SIGCONT)
        permit.release()
    finally:
        first.process.kill()
        first.process.wait()
        second.shutdown()
        second.server_close()


@pytest.mark.parametrize("host", ["192.0.2.1", "localhost.example.org", "127.example.org", "[::2]"])
def test_a_token_is_not_sent_in_the_clear(host: str) -> None:
    with pytest.raises(signalbox.Misuse, match="https"):
        signalbox.Client(f"http://{host}:11217", token="secret")
    signalbox.Client(f"http://{host}:11217", token="secret", token_over_plain=True)
    for other in (f"https://{host}", "http://localhost:11217", "http://127.0.0.2:11217", "http://[::1]:11217"):
        signalbox.Client(other, token="secret")


def test_the_white_space_around_a_token_is_not_sent(server: Server, name: str) -> None:
    with signalbox.Client(server.url, token=f" {server.operator}\r\n").acquire(name, maximum=1):
        assert server.used(name) == (1, 0)


@pytest.mark.parametrize("token", ["a\r\nHost: b", "a\nb", "a\0b", "\u00e4", "\u20ac", "", " \n"])
def test_what_is_no_token_is_refused(token: str, tmp_path: Path) -> None:
    with pytest.raises(signalbox.Misuse, match="token") as misuse:
        signalbox.Client(token=token)
    assert not token.strip() or token not in str(misuse.value)
    file = tmp_path / "token"
    file.write_text(token, "utf-8")
    with pytest.raises(signalbox.Misuse, match=re.escape(str(file))):
        signalbox.Client(token_file=file)


def test_a_file_without_a_token_is_refused_at_first_and_told_later(
    server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    for variable in (None, "SIGNALBOX_TOKEN_FILE"):
        if variable:
            monkeypatch.setenv(variable, str(file))
        with pytest.raises(signalbox.Misuse, match=re.escape(str(file))):
            signalbox.Client(token_file=None if variable else file)
    file.write_text(server.operator)
    client = signalbox.Client(server.url)
    file.unlink()
    for _ in range(2):
        client.acquire(name, maximum=1).release()
    assert [str(file) in message for message in caplog.messages] == [True]


def test_what_the_program_gives_wins_over_the_environment(
    server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(server.operator)
    wrong.write_text("wrong")
    monkeypatch.setenv("SIGNALBOX_TOKEN", "wrong")
    monkeypatch.setenv("SIGNALBOX_TOKEN_FILE", str(right))
    signalbox.Client(server.url).acquire(name, maximum=1).release()
    monkeypatch.setenv("SIGNALBOX_TOKEN_FILE", str(wrong))
    signalbox.Client(server.url, token=server.operator).acquire(name, maximum=1).release()
    signalbox.Client(server.url, token_file=right).acquire(name, maximum=1).release()
    with pytest.raises(signalbox.NotPermitted):
        signalbox.Client(server.url).acquire(name, maximum=1)
    with pytest.raises(signalbox.Misuse, match="token_file"):
        signalbox.Client(server.url, token="a", token_file=right)
    monkeypatch.setenv("SIGNALBOX_TOKEN_OVER_PLAIN", "1")
    signalbox.Client("http://192.0.2.1:11217")
    with pytest.raises(signalbox.Misuse, match="https"):
        signalbox.Client("http://192.0.2.1:11217", token_over_plain=False)


def test_a_token_may_come_from_a_pipe(server: Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = os.pipe()
    os.write(writer, server.operator.encode())
    os.close(writer)
    client = signalbox.Client(server.url, token_file=f"/dev/fd/{reader}")
    os.close(reader)
    client.acquire(name, maximum=1).release()
    assert caplog.messages == []


def fail_without_the_permit(server: Server, client: signalbox.Client, name: str) -> None:
    lost = threading.Event()
    with client.acquire(name, maximum=2) as permit:
        permit.on_lost(lambda _: lost.set())
        server.ask("revoke", {"grant": str(permit.fence), "grace_ms": 0})
        assert lost.wait(15)
        raise ZeroDivisionError


def test_a_revocation_is_pushed(server: Server, name: str) -> None:
    events: list[str] = []
    lost = threading.Event()
    reasons: list[str] = []
    client = signalbox.Client(server.url, on_event=lambda event: events.append(event.kind))
    permit = client.acquire(name, maximum=2)
    permit.on_lost(reasons.append)
    permit.on_lost(lambda _: lost.set())
    server.ask("revoke", {"grant": str(permit.fence), "grace_ms": 0})
    assert lost.wait(15)
    with pytest.raises(signalbox.Lost, match="revoked"), permit:
        pass
    with pytest.raises(ZeroDivisionError):
        fail_without_the_permit(server, client, name)
    assert reasons == ["revoked"]
    assert {"acquired", "lost"} <= set(events)


def test_a_revoked_permit_is_valid_for_its_grace_period(server: Server, name: str) -> None:
    revoking = threading.Event()

    def on_event(event: signalbox.Event) -> None:
        if event.kind == "revoking":
            revoking.set()

    permit = signalbox.Client(server.url, on_event=on_event).acquire(name, maximum=1)
    server.ask("revoke", {"grant": str(permit.fence), "grace_ms": 3_600_000})
    assert revoking.wait(15)
    permit.check()
    permit.release()
    server.eventually(name, (0, 0))


def test_a_loss_is_told_to_a_function_that_comes_later(server: Server, client: signalbox.Client, name: str) -> None:
    permit = client.acquire(name, maximum=1)
    first, second = threading.Event(), threading.Event()
    permit.on_lost(lambda _: first.set())
    server.ask("revoke", {"grant": str(permit.fence), "grace_ms": 0})
    assert first.wait(15)
    permit.on_lost(lambda _: second.set())
    assert second.wait(15)
    permit.release()


def test_the_grace_of_a_revocation_is_told(server: Server, client: signalbox.Client, name: str) -> None:
    """Also to a function that comes later, and while the permit is valid."""
    grace = timedelta(seconds=20)
    with client.acquire(name, maximum=1) as permit:
        told: queue.SimpleQueue[timedelta] = queue.SimpleQueue()
        permit.on_revoking(told.put)
        server.ask("revoke", {"grant": str(permit.fence), "grace_ms": grace // timedelta(milliseconds=1)})
        assert told.get(timeout=15) <= grace
        permit.on_revoking(told.put)
        assert told.get(timeout=15) <= grace
        permit.check()
        assert told.empty()


def test_the_end_of_a_block_does_not_wait_for_the_release_of_a_lost_permit(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signalbox._client.RELEASE_S", 3600)
    monkeypatch.setattr("signalbox._lease.CLEANUP_S", 3600)
    server = Server(tmp_path)

    def work() -> None:
        lost = threading.Event()
        with signalbox.Client(server.url).acquire(name, maximum=1, ttl=timedelta(seconds=1)) as permit:
            permit.on_lost(lambda _: lost.set())
            server.process.send_signal(signal.SIGSTOP)
            assert lost.wait(15)

    with ThreadPoolExecutor() as pool:
        try:
            with pytest.raises(signalbox.Lost):
                pool.submit(work).result(15)
        finally:
            server.process.send_signal(signal.SIGCONT)
    server.eventually(name, (0, 0))  # The background has released it.
    server.stop()


def test_a_released_permit_is_not_entered(client: signalbox.Client, name: str) -> None:
    permit = client.acquire(name, maximum=1)
    permit.release()
    with pytest.raises(signalbox.Misuse, match=name), permit:
        pytest.fail("the block was entered")


def test_an_interrupted_acquire_leaves_nothing(server: Server, client: signalbox.Client, name: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    with client.acquire(name, maximum=1):
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            client.acquire(name, maximum=1, wait=timedelta(minutes=1))
        server.eventually(name, (1, 0))


def test_an_interrupt_between_two_steps_leaves_nothing(
    server: Server, client: signalbox.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a signal whose handler raises."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("signalbox._client.Permit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.acquire(name, maximum=1)
    server.eventually(name, (0, 0))
    permits = [client.acquire(name, maximum=1)]
    with monkeypatch.context() as patch:
        patch.setattr(background(), "submit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            permits[0].release()
    with pytest.warns(ResourceWarning, match=name):
        permits.clear()
    server.eventually(name, (0, 0))


def test_a_permit_that_is_collected_is_released(server: Server, client: signalbox.Client, name: str) -> None:
    permits = [client.acquire(name, maximum=1)]
    permits[0].on_lost(print)
    permits[0].on_revoking(print)
    with pytest.warns(ResourceWarning, match=name):
        permits.clear()
    server.eventually(name, (0, 0))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_permit_that_is_collected_is_released_also_if_warnings_are_errors(
    server: Server, client: signalbox.Client, name: str
) -> None:
    permits = [client.acquire(name, maximum=1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        permits.clear()
    server.eventually(name, (0, 0))


def test_a_child_of_a_fork_makes_its_own_client(server: Server, client: signalbox.Client, name: str) -> None:
    with client.acquire(name, maximum=2) as permit:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                client.acquire(name, maximum=2)
            except signalbox.Misuse:
                del permit
                with signalbox.Client(server.url).acquire(name, maximum=2):
                    status = 0 if server.used(name) == (2, 0) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        permit.check()
        assert server.used(name) == (1, 0)


def test_a_child_of_a_fork_may_exit_in_a_block_of_its_parent(server: Server, name: str) -> None:
    program = f"""
import os, signalbox, sys
with signalbox.Client().acquire({name!r}, maximum=1) as permit:
    if os.fork() == 0:
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    permit.check()
if os.fork() == 0:
    try:
        with permit:
            pass
    except signalbox.Misuse:
        os._exit(8)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    ended = server.python("-W", "ignore::DeprecationWarning", "-c", program)
    assert (ended.stdout, ended.stderr) == ("7\n8\n", "")


def test_a_client_that_was_not_used_before_the_fork_is_used_in_each_child(server: Server, name: str) -> None:
    program = f"""
import os, signalbox
client = signalbox.Client()
children = []
for _ in range(2):
    if (child := os.fork()) == 0:
        client.acquire({name!r}, maximum=3).release()
        os._exit(0)
    children.append(child)
with client.acquire({name!r}, maximum=3):
    print([os.waitpid(child, 0)[1] for child in children])
"""
    ended = server.python("-c", program)
    assert (ended.stdout, ended.stderr) == ("[0, 0]\n", "")


def test_a_decorated_function_is_limited(client: signalbox.Client, name: str) -> None:
    @client.limit(name, maximum=1, on_busy="skip")
    def twice(number: int) -> int:
        assert twice(number) is None
        return 2 * number

    assert twice(4) == 8

    @client.limit(name, maximum=1)
    def nested() -> None:
        nested()

    with pytest.raises(signalbox.Busy):
        nested()
    with pytest.raises(TypeError):
        twice("4", 5)  # type: ignore[call-arg, arg-type] # The types of the function are kept.


def test_a_function_that_works_after_its_call_is_not_decorated(client: signalbox.Client) -> None:
    async def asynchronous() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    async def asynchronous_generator() -> AsyncIterator[int]:
        yield 1

    class Called:
        async def __call__(self) -> None: ...

    for function in (asynchronous, generator, asynchronous_generator, Called()):
        for partial in (function, functools.partial(function)):
            with pytest.raises(signalbox.Misuse, match="limit"):
                client.limit("misused", maximum=1)(partial)


def test_a_wrong_limit_is_refused_where_it_is_written(client: signalbox.Client) -> None:
    def function() -> None: ...

    with pytest.raises(signalbox.Misuse, match="limit"):
        client.limit(function)  # type: ignore[call-overload]
    with pytest.raises(signalbox.Misuse, match="on_busy"):
        client.limit("misused", maximum=1, on_busy="ignore")  # type: ignore[call-overload]
    with pytest.raises(signalbox.Misuse, match="maximum"):
        client.limit("misused", maximum=0)


def test_of_those_that_need_a_result_one_makes_it(server: Server, client: signalbox.Client, name: str) -> None:
    results: list[str] = []
    makes: list[signalbox.Permit] = []
    finish = threading.Event()

    def find() -> str | None:
        return results[0] if results else None

    def make(permit: signalbox.Permit) -> str:
        makes.append(permit)
        assert finish.wait(15)
        results.append("made")
        return "made"

    def share() -> str:
        return client.share(name, find, make, wait=timedelta(seconds=30))

    with ThreadPoolExecutor() as pool:
        shares = [pool.submit(share) for _ in range(4)]
        server.eventually(name, (1, 3))
        finish.set()
        assert [share.result() for share in shares] == ["made"] * 4
    assert len(makes) == 1
    assert share() == "made"
    assert server.used(name) == (0, 0)


def test_a_failure_passes_the_work_on(server: Server, client: signalbox.Client, name: str) -> None:
    may_fail = threading.Event()

    def fail(permit: signalbox.Permit) -> str:
        assert may_fail.wait(15)
        server.eventually(name, (1, 1))
        raise ZeroDivisionError

    with ThreadPoolExecutor() as pool:
        failing = pool.submit(client.share, name, lambda: None, fail)
        server.eventually(name, (1, 0))
        with pytest.raises(signalbox.TimedOut):
            client.share(name, lambda: None, lambda _: "early", wait=timedelta(milliseconds=10))
        may_fail.set()
        assert client.share(name, lambda: None, lambda _: "made", wait=timedelta(seconds=30)) == "made"
        with pytest.raises(ZeroDivisionError):
            failing.result()
    assert server.used(name) == (0, 0)


def test_only_a_shared_permit_is_released_as_done(server: Server, client: signalbox.Client, name: str) -> None:
    with client.acquire(name, maximum=1) as permit:
        with pytest.raises(signalbox.Misuse, match=name):
            permit.release_done()
        permit.check()
    shared = client.acquire_shared(name)
    assert shared
    shared.release_done()
    shared.release_done()
    assert server.used(name) == (0, 0)


def test_failures_survive_a_queue_of_tasks() -> None:
    for failure in (signalbox.Lost("the permit is lost", "revoked"), signalbox.Busy("in use")):
        again = pickle.loads(pickle.dumps(failure))
        assert (type(again), str(again), vars(again)) == (type(failure), str(failure), vars(failure))


def test_exit_does_not_wait(server: Server) -> None:
    code = "import signalbox; p = signalbox.Client().acquire('exit', maximum=1); print(p.is_held)"
    ended = server.python("-c", code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


@pytest.mark.parametrize(
    "program",
    [
        "with signalbox.Client().acquire(NAME, maximum=1): pass",
        "permit = signalbox.Client().acquire(NAME, maximum=1)",
        "client = signalbox.Client()\nwith client, client.acquire(NAME, maximum=1): pass",
        "async def main():\n async with aio.Client().acquire(NAME, maximum=1): pass\nasyncio.run(main())",
        "async def main():\n async with aio.Client() as c, c.acquire(NAME, maximum=1): pass\nasyncio.run(main())",
    ],
)
def test_the_end_of_a_program_is_silent(server: Server, name: str, program: str) -> None:
    """Also with all warnings, but for those about a slow machine."""
    before = f"""
import asyncio, logging, signalbox
from signalbox import aio
logging.getLogger("asyncio").setLevel("ERROR")
NAME = {name!r}
"""
    ended = server.python("-X", "dev", "-c", before + program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_client_that_is_closed_holds_nothing(server: Server, name: str) -> None:
    with signalbox.Client(server.url) as client, ThreadPoolExecutor() as pool:
        permit = client.acquire(name, maximum=1)
        waiting = pool.submit(client.acquire, name, maximum=1, wait=timedelta(minutes=1))
        server.eventually(name, (1, 1))
        client.close()
        assert server.used(name) == (0, 0)
        with pytest.raises(signalbox.Misuse, match="closed"):
            waiting.result()
        with pytest.raises(signalbox.Lost) as lost:
            permit.check()
        assert lost.value.reason == "released"
        with pytest.raises(signalbox.Misuse, match="closed"):
            client.acquire(name, maximum=1)
    unused = signalbox.Client(server.url)
    unused.close()
    with pytest.raises(signalbox.Misuse, match="closed"):
        unused.acquire(name, maximum=1)


def test_a_client_that_nobody_has_keeps_no_connection(server: Server, name: str) -> None:
    connections = background().connections
    client = signalbox.Client(server.url)
    client.acquire(name, maximum=1).release()
    idle = connections.copy()
    client.close()
    assert len(connections & idle) < len(idle)
    client = signalbox.Client(server.url)
    client.acquire(name, maximum=1).release()
    ours = connections - idle
    assert ours
    del client
    deadline = time.monotonic() + 15
    while connections & ours:
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.02)


def test_the_examples_work(server: Server, tmp_path: Path) -> None:
    server.ask("declare", {"name": "gpus", "capacity": 4, "slots": True})

    def run(example: str, *arguments: str, text: str = "") -> str:
        ended = server.python(str(EXAMPLES / example), *arguments, text=text)
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr == ""
        return ended.stdout

    done = run("worker_pool.py", text="blue one\nblue two\nblue three\nred four\n")
    assert sorted(done.splitlines()) == ["four for red", "one for blue", "three for blue", "two for blue"]
    assert run("cron_job.py") == "the report is written\n"
    assert run("leader.py", "3").startswith("this process leads")
    assert run("slots.py") == "on GPU 0\n"
    assert run("several_names.py", "blue", "red") == "the transfer between blue and red is done\n"
    assert run("cache.py", str(tmp_path / "page.html")) == run("cache.py", str(tmp_path / "page.html"))
    for example in ("cache.py", "several_names.py", "fenced_table.py"):
        ended = server.python(str(EXAMPLES / example))
        assert ended.returncode == 1
        assert ended.stderr.startswith("usage: ")
    table = run("fenced_table.py", str(tmp_path / "report.db"))
    assert table == "the holder writes: True\nan earlier holder writes: False\n"


def test_the_readme_works(server: Server) -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert programs
    for program in programs:
        ended = server.python("-W", "error", "-c", program)
        assert ended.returncode == 0, f"{program}\n{ended.stderr}"


def test_gevent(server: Server) -> None:
    pytest.importorskip("gevent")
    program = """
from gevent import monkey
monkey.patch_all()
import datetime, time, gevent, signalbox
client, order = signalbox.Client(), []
def work(number):
    with client.acquire("gevent", maximum=1, wait=datetime.timedelta(seconds=10), ttl=datetime.timedelta(seconds=1)):
        order.append(number)
        gevent.sleep(0.1)
gevent.joinall([gevent.spawn(work, number) for number in range(3)], raise_error=True)
assert sorted(order) == [0, 1, 2], order
with client.acquire("gevent", maximum=1, ttl=datetime.timedelta(seconds=1)) as permit:
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        pass  # Blocks the hub for longer than the lease.
    permit.check()
"""
    ended = server.python("-c", program)
    assert ended.returncode == 0, ended.stderr
