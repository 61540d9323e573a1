"""The blocks of code of a document, as the files that they name, and programs that run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORK = Path(os.environ["INTEGRATIONS_WORK"])
PATIENCE_S = 60
CLASSES = f"{WORK}/java/classes:{WORK}/java/lib/*"
"""The client for Java, and what its recipes use."""

needs_java = pytest.mark.skipif(not (WORK / "java/lib").exists(), reason="there is no JDK with Maven")


def blocks(document: str) -> dict[str, str]:
    """Each block of a document, by the file that its first comment names."""
    texts = re.findall(r"^```\w+\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    named = {}
    for text in texts:
        name = re.match(r"(?:<\?php\n)?(?:#|//) (\S+)\n", text)
        assert name, f"a block of {document} does not begin with the name of its file: {text[:60]!r}"
        named[name[1]] = text
    return named


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def eventually(what: str, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


class Program:
    """A program that runs in a directory. Its standard output is in `output`, and it ends with its block."""

    def __init__(self, directory: Path, *command: str | Path, **environment: str) -> None:
        self._log = directory / f"{time.monotonic_ns()}.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def says(self, text: str) -> None:
        eventually(f"the output has {text!r}: {self.output}", lambda: text in self.output)

    def end(self, text: str = "") -> int:
        """Closes its input after a text, and waits for its end."""
        self.process.communicate(text, timeout=PATIENCE_S)
        return self.process.returncode

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.end()


def python(directory: Path, *arguments: str | Path, **environment: str) -> Program:
    return Program(directory, sys.executable, *arguments, **environment)


class Shell:
    """A directory in which scripts run, with the program and stand-ins for other commands on the PATH."""

    def __init__(
        self, program: str, directory: Path, environment: Mapping[str, str] | None = None, **commands: str
    ) -> None:
        (directory / "signalbox").symlink_to(program)
        for name, text in commands.items():
            (directory / name).write_text(f"#!/bin/bash\n{text}\n")
            (directory / name).chmod(0o755)
        self._directory = directory
        self._environment = {**(environment or {}), "PATH": f"{directory}:{os.environ['PATH']}"}

    def run(self, script: str, **environment: str) -> Program:
        return Program(self._directory, "bash", "-e", "-c", script, **{**self._environment, **environment})
