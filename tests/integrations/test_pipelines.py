"""The recipes of docs/integrations.md for continuous integration, and the programs of etc/github-action."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Server
from recipes import ROOT, Program, Shell, blocks, eventually

import signalbox

PAGE = blocks("docs/integrations.md")
ACTION = ROOT / "etc/github-action"


class Job:
    """A job of a runner with the action as its only step."""

    def __init__(self, directory: Path, **inputs: str) -> None:
        self._directory = directory
        action = yaml.safe_load((ACTION / "action.yml").read_text())
        defaults = {name: spec.get("default", "") for name, spec in action["inputs"].items()}
        assert inputs.keys() <= defaults.keys()
        self.outputs_declared = action["outputs"].keys()
        self._programs = action["runs"]
        self._environment = {f"INPUT_{name.upper()}": value for name, value in {**defaults, **inputs}.items()}
        self._environment |= {"GITHUB_REPOSITORY": "octo/shop", "GITHUB_RUN_ID": "7"}
        for file in ("GITHUB_STATE", "GITHUB_OUTPUT"):
            (directory / file).touch()
            self._environment[file] = str(directory / file)

    def read(self, file: str) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self._directory / file).read_text().splitlines())

    def step(self) -> Program:
        """The step, as a process of a runner that continues until its input ends."""
        script = 'node "$0"; echo "status $?"; read -r line'
        return Program(self._directory, "sh", "-c", script, ACTION / self._programs["main"], **self._environment)

    def post(self) -> tuple[int, str]:
        state = {f"STATE_{name}": value for name, value in self.read("GITHUB_STATE").items()}
        program = ACTION / self._programs["post"]
        with Program(self._directory, "node", program, **self._environment, **state) as post:
            return post.end(), post.output

    def keepers(self) -> list[str]:
        """The processes that renew the lease of this job."""
        key = f"STATE_key={self.read('GITHUB_STATE')['key']}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if key in (process / "environ").read_bytes().split(b"\0"):
                    found.append(process.name)
            except OSError:
                pass  # It has ended.
        return found


def staging(server: Server, **inputs: str) -> dict[str, str]:
    """The inputs of the page, for the server of the test."""
    workflow = yaml.safe_load(PAGE[".github/workflows/staging.yml"])
    [step] = [step for step in workflow["jobs"]["staging"]["steps"] if "etc/github-action@" in step.get("uses", "")]
    texts = {name: str(value) for name, value in step["with"].items()}
    assert texts["url"].startswith("https://")
    return {**texts, "url": server.url, "token": server.operator, **inputs}


def test_a_job_holds_until_its_end(server: Server, tmp_path: Path) -> None:
    job = Job(tmp_path, **staging(server, **{"ttl_seconds": "2"}))
    with job.step() as runner:
        runner.says("status 0")
        outputs = job.read("GITHUB_OUTPUT")
        assert outputs.keys() == job.outputs_declared
        time.sleep(4)
        assert server.used("staging") == (1, 0), "it is renewed"
        assert signalbox.Client(server.url).try_acquire("staging", maximum=1) is None
        assert job.post() == (0, "")
        assert server.used("staging") == (0, 0)
        eventually("its process ends", lambda: job.keepers() == [])
    assert f"::add-mask::{job.read('GITHUB_STATE')['key']}\n" in runner.output
    assert runner.output.count(job.read("GITHUB_STATE")["key"]) == 1


def test_a_job_waits_in_the_queue(server: Server, tmp_path: Path) -> None:
    held = signalbox.Client(server.url).acquire("staging", maximum=1)
    job = Job(tmp_path, **staging(server))
    with job.step() as runner:
        runner.says('waiting for "staging": position 1 in the queue')
        held.release()
        runner.says("status 0")
        assert int(job.read("GITHUB_OUTPUT")["fence"]) > held.fence
        assert job.post() == (0, "")


def test_a_job_that_is_canceled_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    with signalbox.Client(server.url).acquire("staging", maximum=1):
        job = Job(tmp_path, **staging(server))
        with job.step() as runner:
            runner.says("position 1")
            os.killpg(runner.process.pid, signal.SIGINT)
        assert server.used("staging") == (1, 1)
        assert job.post() == (0, "")
        server.eventually("staging", (1, 0))


def test_a_step_fails_if_the_limit_is_in_use_for_too_long(server: Server, tmp_path: Path) -> None:
    with signalbox.Client(server.url).acquire("staging", maximum=1):
        job = Job(tmp_path, **staging(server, **{"wait_minutes": "0"}))
        with job.step() as runner:
            runner.says("status 1")
            assert '::error title=signalbox::cannot acquire "staging"' in runner.output
        assert job.post() == (0, "")
        assert server.used("staging") == (1, 0)


def test_the_lease_ends_after_the_runner(server: Server, tmp_path: Path) -> None:
    job = Job(tmp_path, **staging(server, **{"ttl_seconds": "2"}))
    with job.step() as runner:
        runner.says("status 0")
        assert job.keepers() != []
        runner.process.kill()
        runner.process.wait()
        server.eventually("staging", (0, 0))
        assert job.keepers() == []


def test_a_job_that_has_lost_its_lease_fails(server: Server, tmp_path: Path) -> None:
    job = Job(tmp_path, **staging(server))
    with job.step() as runner:
        runner.says("status 0")
        server.ask("revoke", {"grant": job.read("GITHUB_OUTPUT")["fence"], "grace_ms": 0})
        server.eventually("staging", (0, 0))
        status, output = job.post()
        assert status == 1
        assert '::error title=signalbox::"staging" was lost while the job ran' in output


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"url": "http://lock.example.org:11217"}, "the token is not sent to lock.example.org:11217 without TLS"),
        ({"ttl_seconds": "a minute"}, 'the input "ttl_seconds" is "a minute"'),
        ({"token": "wrong"}, "token"),
        ({"maximum": ""}, 'cannot acquire "staging"'),
    ],
)
def test_wrong_inputs_are_reported(server: Server, tmp_path: Path, inputs: dict[str, str], message: str) -> None:
    job = Job(tmp_path, **staging(server, **inputs))
    with job.step() as runner:
        runner.says("status 1")
        assert message in runner.output
        assert runner.output.count("::error title=signalbox::") == 1


def shell(server: Server, directory: Path, **commands: str) -> Shell:
    environment = {"SIGNALBOX_SERVER": server.address, "SIGNALBOX_TOKEN": server.operator}
    return Shell(server.program, directory, environment, **commands)


def test_one_pipeline_of_gitlab_deploys_at_a_time(server: Server, tmp_path: Path) -> None:
    job: dict[str, Any] = yaml.safe_load(PAGE[".gitlab-ci.yml"])["deploy"]
    assert "SIGNALBOX_SERVER" in job["variables"]
    [line] = job["script"]
    jobs = shell(server, tmp_path, deploy='echo deploying; until [ -e end ]; do sleep 0.05; done; exit "${STATUS:-0}"')
    impatient = line.replace("--wait 20m", "--wait 1s")
    assert impatient != line
    with jobs.run(line) as first, jobs.run(line, STATUS="3") as second:
        server.eventually("deploy/production", (1, 1))
        with jobs.run(impatient) as third:
            assert [third.end()] == job["allow_failure"]["exit_codes"], third.output
        (tmp_path / "end").touch()
        assert sorted([first.end(), second.end()]) == [0, 3], "the status is that of the command"
    with jobs.run(line, SIGNALBOX_SERVER="127.0.0.1:1") as alone:
        assert [alone.end()] == job["retry"]["exit_codes"], alone.output


def test_builds_of_jenkins_get_a_database_each(server: Server, tmp_path: Path) -> None:
    assert "SIGNALBOX_SERVER = " in PAGE["Jenkinsfile"]
    [text] = re.findall(r"\bsh '((?:[^'\\]|\\.)*)'", PAGE["Jenkinsfile"])
    script = text.replace("\\'", "'")
    [declare] = re.findall(r"`(signalbox declare test-db .*)`", (ROOT / "docs/integrations.md").read_text())
    jobs = shell(server, tmp_path, test='echo "$@"; exec sleep 600')
    with jobs.run(declare) as declaring:
        assert declaring.end() == 0, declaring.output
    with jobs.run(script) as first, jobs.run(script) as second:
        server.eventually("test-db", (2, 0))
        first.says("--database test_")
        second.says("--database test_")
        assert {first.output, second.output} == {"--database test_0\n", "--database test_1\n"}
        for program in (first, second):
            os.killpg(program.process.pid, signal.SIGTERM)
        server.eventually("test-db", (0, 0))
