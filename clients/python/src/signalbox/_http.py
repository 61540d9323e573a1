"""Requests to the servers: each is sent until one of them gives an answer that counts."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import json
import os
import random
import re
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ._background import Background, log, now, resolve
from ._errors import Misuse, SignalboxError, Unreachable

if TYPE_CHECKING:
    from ._lease import Lease

IDLE_S = 10.0
"""How long a connection is kept without a request; the server closes it after 15 s."""

ANSWER_BYTES_MAX = 1 << 20

ATTEMPTS_MAX = 4
"""How many attempts of one request are under way at a time."""

REFUSED = (401, 403, 429)
"""The client does not have the right, or has a wrong token."""


BEGIN = b"HTTP/"
"""What each answer begins with."""


class Hopeless(Exception):
    """What listens at an address is certainly not a server that the client can use, so repeating does not help."""

    def __init__(self, failure: type[SignalboxError], why: str) -> None:
        super().__init__(why)
        self.failure = failure
        """What an acquire raises if all servers are so."""


class LimitReached(Unreachable):
    """The last answer of a server was that it has no room. Further requests may have been executed."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message)
        self.answer = answer


class WrongAnswer(ValueError):
    """The answer is one of HTTP, and not one of signalbox."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the answer is not one of signalbox ({why}); check that this is its HTTP listener")


@dataclass
class Answer:
    """An answer to a request that was sent at `sent`, a time of `now()`, with this token."""

    sent: float
    token: str | None
    status: int
    body: dict[str, Any]
    retry_after: float = 0.0

    def check(self, path: str) -> None:
        """Raises WrongAnswer for what no server of signalbox answers to a request with this path."""
        if path == "acquire":
            is_one = (self.status, self.body.get("state")) in ((200, "held"), (200, "done"), (202, "queued"))
        else:
            is_one = self.status == 200 and (path == "release" or bool(self.body.get("leases")))
        if not is_one and self.status < 400:
            raise WrongAnswer(f"status {self.status}")

    @property
    def code(self) -> str:
        error = self.body.get("error")
        return str(error.get("code")) if isinstance(error, dict) else f"http_{self.status}"

    @property
    def message(self) -> str:
        error = self.body.get("error")
        return str(error.get("message")) if isinstance(error, dict) else f"HTTP status {self.status}"


class _Connection:
    def __init__(self, background: Background, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.idle_since = 0.0
        self._open = background.connections
        self._open.add(self)

    def close(self) -> None:
        self._open.discard(self)
        self.writer.close()


@dataclass
class _Server:
    secure: bool
    host: str
    port: int
    authority: str
    path: str
    """What stands before the paths of the requests, as at a proxy."""
    hint: str
    """The text that a failure adds to the authority."""
    idle: deque[_Connection] = field(default_factory=deque)
    address: int = 0
    """Which address of the name the next attempt begins with: the one that was connected to last, or, while an attempt
    waits for one, the next."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Token:
    """The token of a client, which is read again at each connection and after a refusal, if it comes from a file."""

    def __init__(self, token: str | None, file: str | os.PathLike[str] | None) -> None:
        """Raises Misuse if it cannot be read, or is not a token."""
        self._file = None if file is None else Path(file)
        self._is_readable = True
        try:
            self.value = self._read(self._file) if self._file else token if token is None else _usable(token)
        except OSError as error:
            raise Misuse(f"the token cannot be read: {error}") from None
        except ValueError as error:
            where = "the token" if self._file is None else f'the token in "{self._file}"'
            raise Misuse(f"{where} {error}; signalbox token create makes one") from None
        if self._file and not self._file.is_file():
            self._file = None  # A pipe is read once.

    @staticmethod
    def _read(file: Path) -> str:
        return _usable(file.read_text("latin-1"))

    def read(self) -> None:
        """Reads the file again. One that has no token, as while it is replaced, leaves the token as it is."""
        if self._file:
            try:
                self.value = self._read(self._file)
                self._is_readable = True
            except (OSError, ValueError) as error:
                if self._is_readable:
                    log.warning('the file "%s" has no token now, so the last one is used: %s', self._file, error)
                self._is_readable = False


def _usable(token: str) -> str:
    """A token without the white space around it. Raises ValueError, which does not show it."""
    token = token.strip()
    if not token:
        raise ValueError("is empty")
    if not (token.isascii() and token.isprintable()):
        raise ValueError("has characters that no token has, such as one of control in its middle")
    return token


class Servers:
    """The servers of a client, of which one leads. All methods belong to the background thread."""

    def __init__(
        self, background: Background, urls: Sequence[str], token: Token, ca: str | None, over_plain: bool
    ) -> None:
        self.is_closed = False
        """No more is acquired, and no connection is kept."""
        self.leases: set[Lease] = set()
        """Those that are acquired, held or being released."""
        self._background = background
        self._servers: list[_Server] = []
        self._servers += [self._parse(url, over_plain or not token.value) for url in urls]
        self._token = token
        try:
            # The authorities of the system are read when they are needed.
            self._tls = ssl.create_default_context(cafile=ca) if ca else None
        except OSError as error:
            raise Misuse(f'the certificates of authorities cannot be read from "{ca}": {error}') from None
        self._warnings: set[str] = set()

    async def close(self, wait_s: float) -> None:
        """Ends all leases, waits for their releases for a limited time, and closes the connections."""
        if releases := [lease.close() for lease in list(self.leases)]:
            await asyncio.wait(releases, timeout=wait_s)
        _close_idle(self._servers)

    def __del__(self) -> None:
        # Any thread may collect it, and only that of the connections may close them.
        if any(server.idle for server in self._servers) and not self._background.forked:
            with suppress(RuntimeError):  # The program ends.
                self._background.loop().call_soon_threadsafe(_close_idle, self._servers)

    def warn_once(self, text: str) -> None:
        """Tells the log about the servers, once for each client."""
        if text not in self._warnings:
            self._warnings.add(text)
            log.warning("%s", text)

    @staticmethod
    def _parse(url: str, may_be_plain: bool) -> _Server:
        url = url.strip()
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        is_text = url.isascii() and url.isprintable() and " " not in url
        is_more = "@" in parts.netloc or parts.query or parts.fragment or port == 0
        if not (is_text and parts.scheme in ("http", "https") and parts.hostname) or is_more:
            shown = re.sub("^(.*//)?[^/]*@", r"\1…@", url)  # Without a password.
            raise Misuse(f'the URL "{shown}" is wrong: use one such as http://127.0.0.1:11217')
        secure = parts.scheme == "https"
        if not (secure or may_be_plain or _is_loopback(parts.hostname)):
            raise Misuse(f'the token is not sent to "{url}" without TLS: use https, or token_over_plain=True')
        hint = ""
        if port is None:
            port = 443 if secure else 80
            hint = f" (port {port}, since the URL has none; that of signalbox is usually 11217)"
        return _Server(secure, parts.hostname, port, parts.netloc, parts.path.rstrip("/"), hint)

    async def ask(self, path: str, body: Mapping[str, Any], hedge: float, deadline: float) -> Answer:
        """Sends a request until a server has answered it, and raises Unreachable at the `deadline`.

        After `hedge` seconds without an answer, it is sent to the next server as well, over another connection, to be
        answered at once: the first answer counts. A server that does not lead, has no room, or fails, has not answered.
        All requests can be repeated. Raises Hopeless for an acquire, which does not wait until servers are replaced.
        """
        servers = itertools.cycle(list(self._servers))
        attempts: dict[asyncio.Task[Answer], _Server] = {}
        pause, failures = 0.05, 0
        last = "no answer" + max(server.hint for server in self._servers)
        hopeless: dict[str, Hopeless] = {}
        limited: dict[str, Answer] = {}
        try:
            while (left := deadline - now()) > 0:
                if len(attempts) == ATTEMPTS_MAX:
                    oldest = next(iter(attempts))
                    del attempts[oldest]
                    oldest.cancel()
                server = next(servers)
                attempts[asyncio.ensure_future(self._attempt(server, path, body))] = server
                body = {name: value for name, value in body.items() if name != "poll_ms"}
                done, _ = await asyncio.wait(attempts, timeout=min(hedge, left), return_when=asyncio.FIRST_COMPLETED)
                retry_after = 0.0
                for attempt in done:
                    server = attempts.pop(attempt)
                    limited.pop(server.authority, None)
                    try:
                        answer = attempt.result()
                    except Exception as error:  # Whatever it is, the lease depends on the next attempt.
                        failures += 1
                        last = f"{server.authority}{server.hint}: {error or type(error).__name__}"
                        if isinstance(error, Hopeless):
                            hopeless[server.authority] = Hopeless(error.failure, last)
                            if path == "acquire" and len(hopeless) == len(self._servers):
                                raise min(hopeless.values(), key=lambda each: each.failure is Misuse) from None
                        continue
                    hopeless.pop(server.authority, None)
                    if answer.status < 500 and answer.status != 408:
                        self._prefer(server)
                        return answer
                    failures, last = failures + 1, f"{server.authority}: {answer.message}"
                    if answer.code == "limit_reached":
                        limited[server.authority] = answer
                    if answer.code == "busy":  # There is no room for requests that wait for a change.
                        retry_after = answer.retry_after
                if done and failures >= len(self._servers):
                    # All servers were tried.
                    failures = 0
                    wait = random.uniform(pause / 2, pause) + random.uniform(0.5, 1) * retry_after
                    await asyncio.sleep(max(0.0, min(wait, deadline - now())))
                    pause = min(pause * 2, 2.0)
            raise next(map(LimitReached, limited.values()), Unreachable(last))
        finally:
            for attempt in attempts:
                attempt.cancel()

    def _prefer(self, server: _Server) -> None:
        """The next request is sent to this server first."""
        if self._servers[0] is not server:
            self._servers.sort(key=lambda other: other is not server)

    async def _attempt(self, server: _Server, path: str, body: Mapping[str, Any]) -> Answer:
        while server.idle:
            connection = server.idle.pop()
            if now() - connection.idle_since < IDLE_S and not connection.reader.at_eof():
                with suppress(OSError, EOFError):
                    return await self._exchange(server, connection, path, body)
            connection.close()
        return await self._exchange(server, await self._connect(server), path, body)

    async def _connect(self, server: _Server) -> _Connection:
        self._token.read()
        if server.secure and self._tls is None:
            self._tls = ssl.create_default_context()
        failure: OSError = OSError(f"{server.host} has no address")
        addresses = await resolve(server.host, server.port)
        for _ in addresses:
            number = server.address % len(addresses)
            server.address = number + 1
            family, _, _, _, address = addresses[number]
            try:
                reader, writer = await asyncio.open_connection(
                    address[0],
                    address[1],
                    family=family,
                    ssl=self._tls if server.secure else None,
                    server_hostname=server.host if server.secure else None,
                    limit=ANSWER_BYTES_MAX,
                )
            except ssl.SSLCertVerificationError as error:
                advice = "check the URL, and the authorities in SIGNALBOX_CA"
                why = f"the certificate of the server is not trusted ({error.verify_message}); {advice}"
                raise Hopeless(Unreachable, why) from None
            except ssl.SSLError as error:
                if error.reason == "WRONG_VERSION_NUMBER":
                    raise Hopeless(Misuse, "this port has no TLS; use http, or the server's port with TLS") from None
                failure = error
            except OSError as error:
                failure = error
            else:
                server.address = number
                return _Connection(self._background, reader, writer)
        raise failure

    async def _exchange(self, server: _Server, connection: _Connection, path: str, body: Mapping[str, Any]) -> Answer:
        content, token = json.dumps(body).encode(), self._token.value
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        head = (
            f"POST {server.path}/api/v1/lease/{path} HTTP/1.1\r\nHost: {server.authority}\r\n{authorization}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        is_reusable = False
        try:
            sent = now()
            connection.writer.write(head.encode() + content)
            await connection.writer.drain()
            answer, is_reusable = await _read(connection.reader, sent, token)
            answer.check(path)
            # A server that has refused many tokens accepts no other one over a connection with a refused one.
            is_reusable = is_reusable and answer.status not in REFUSED
        finally:
            if is_reusable and not self.is_closed:
                connection.idle_since = now()
                server.idle.append(connection)
                while server.idle[0].idle_since < now() - IDLE_S:
                    server.idle.popleft().close()
            else:
                connection.close()
        return answer


def _close_idle(servers: Sequence[_Server]) -> None:
    for server in servers:
        while server.idle:
            server.idle.pop().close()


async def _read(reader: asyncio.StreamReader, sent: float, token: str | None) -> tuple[Answer, bool]:
    """Reads an answer; whether its connection can be used again."""
    try:
        begin = await reader.readexactly(len(BEGIN))
    except asyncio.IncompleteReadError as error:
        begin = error.partial
        if BEGIN.startswith(begin):
            raise
    if begin != BEGIN:
        raise Hopeless(Misuse, "this port has no HTTP, or only with TLS; use that of signalbox serve --http-port")
    try:
        status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.LimitOverrunError:
        raise WrongAnswer("its head is too long") from None
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status, length = status_line[4:7], headers.get("content-length", "")
    if not (status.isdecimal() and length.isdecimal() and int(length) <= ANSWER_BYTES_MAX):
        raise WrongAnswer("without a status, or without a length")
    try:
        body = json.loads(await reader.readexactly(int(length)))
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise WrongAnswer(f"status {status} without a JSON object")
    retry_after = headers.get("retry-after", "")
    answer = Answer(sent, token, int(status), body, float(retry_after) if retry_after.isdecimal() else 0.0)
    return answer, headers.get("connection", "").lower() != "close"
