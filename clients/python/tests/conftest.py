"""A server for the tests: the program `SIGNALBOX_BIN`, or the one that cargo has built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = Path(__file__).parents[1] / "examples"


class Server:
    """A server that listens on free ports."""

    def __init__(self, directory: Path) -> None:
        program = os.environ.get("SIGNALBOX_BIN") or ROOT / "target/debug/signalbox"
        self.tokens = directory / "tokens.toml"
        self.program = str(program)
        operator = self.run("token", "create", "operator", "--rights", "all", "--file", str(self.tokens))
        (directory / "signalbox.toml").write_text(f"[http]\nenable = true\n[access]\ntokens = '{self.tokens}'\n")
        ports = ["--counter-port", "0", "--semaphore-port", "0", "--http-port", "0"]
        command = [program, "serve", "--config", str(directory / "signalbox.toml"), "--log-format", "json", *ports]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        for line in self.process.stderr:
            if "signalbox is ready" in line:
                fields = json.loads(line)["fields"]
                self.url, self.address = f"http://{fields['http']}", fields["counter"]
                break
        self.operator = operator.strip()

    def run(self, *arguments: str) -> str:
        """Runs the command line."""
        return subprocess.run([self.program, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr
        self.process.stderr.close()

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A request of an administrator."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.operator}"}
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            result: dict[str, Any] = json.load(answer)
            return result

    def used(self, name: str) -> tuple[int, int]:
        """How much of a name is in use, and how many requests wait for it."""
        items = self.ask("name", {"name": name})["items"] if self.exists(name) else []
        return sum(item["in_use"] for item in items), sum(item["waiting"] for item in items)

    def exists(self, name: str) -> bool:
        items = self.ask("names", {"prefix": name})["items"]
        return any(item["name"] == name for item in items)

    def eventually(self, name: str, used: tuple[int, int]) -> None:
        """Waits until this much is in use and this many requests wait."""
        deadline = time.monotonic() + 15
        while self.used(name) != used:
            assert time.monotonic() < deadline, f"{name}: {self.used(name)} instead of {used}"
            time.sleep(0.02)

    def python(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a program that finds the server."""
        environment = {**os.environ, "SIGNALBOX_URL": self.url}
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of its own for each test."""
    return str(request.node.name)
