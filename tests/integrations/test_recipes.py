"""The recipes of docs/integrations.md for frameworks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import Server
from recipes import CLASSES, ROOT, WORK, Program, blocks, eventually, needs_java, python, write

import signalbox

PAGE = blocks("docs/integrations.md")
TESTS = Path(__file__).parent


@pytest.mark.parametrize("document", ["docs/integrations.md", "docs/opentelemetry.md"])
def test_every_block_has_a_test(document: str) -> None:
    tests = "".join(file.read_text() for file in TESTS.glob("test_*.py"))
    names = blocks(document)
    assert len(names) > 3
    assert [name for name in names if f'PAGE["{name}"]' not in tests] == []


SHOP = """
import pathlib

class Page:
    def __init__(self, tenant):
        self.tenant = tenant

    def write(self, fence):
        with open("written", "a") as file:
            print(self.tenant, fence, file=file)

def export_pages(tenant):
    with open("begun", "a") as file:
        print(tenant, file=file)
    while not pathlib.Path("end").exists():
        yield Page(tenant)
    yield Page(tenant)
"""

CELERYCONFIG = """
broker_url = "filesystem://"
broker_transport_options = {"data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control"}
result_backend = "file://results"
task_ignore_result = False
"""


def test_celery_runs_as_many_tasks_of_a_tenant_as_may(server: Server, tmp_path: Path) -> None:
    write(tmp_path, {"tasks.py": PAGE["tasks.py"], "shop.py": SHOP, "celeryconfig.py": CELERYCONFIG})
    for folder in ("queue", "control", "results"):
        (tmp_path / folder).mkdir()

    def begun() -> list[str]:
        file = tmp_path / "begun"
        return file.read_text().split() if file.exists() else []

    environment = {"SIGNALBOX_URL": server.url}
    send = "import tasks; [tasks.export.delay(tenant) for tenant in ['7', '7', '7', '8']]"
    with python(tmp_path, "-c", send, **environment) as sender:
        assert sender.end() == 0, sender.output
    options = ["--concurrency", "4", "--loglevel", "info"]
    with python(tmp_path, "-m", "celery", "-A", "tasks", "worker", *options, **environment) as worker:
        eventually("two tasks of one tenant, and one of the other", lambda: sorted(begun()) == ["7", "7", "8"])
        worker.says("Retry in")
        assert server.used("export/7") == (2, 0)
        (tmp_path / "end").touch()
        eventually("the third task runs", lambda: sorted(begun()) == ["7", "7", "7", "8"])
        eventually("all have ended", lambda: worker.output.count(" succeeded in ") == 4)
        assert server.used("export/7") == (0, 0)


INVOICES = """
class Invoice:
    def close(self, fence):
        print("closed with", fence)

def open_invoices():
    return [Invoice(), Invoice()]
"""


def test_a_management_command_of_django_runs_on_one_machine(server: Server, tmp_path: Path) -> None:
    command = "billing/management/commands/close_month.py"
    packages = ["billing/__init__.py", "billing/management/__init__.py", "billing/management/commands/__init__.py"]
    settings = "INSTALLED_APPS = ['billing']\nSECRET_KEY = 'of the test'\n"
    write(tmp_path, dict.fromkeys(packages, ""))
    text = PAGE["billing/management/commands/close_month.py"]
    write(tmp_path, {command: text, "billing/invoices.py": INVOICES, "settings.py": settings})
    environment = {"SIGNALBOX_URL": server.url, "DJANGO_SETTINGS_MODULE": "settings"}

    def run() -> str:
        path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
        with python(tmp_path, "-m", "django", "close_month", PYTHONPATH=path, **environment) as program:
            assert program.end() == 0, program.output
            return program.output

    assert run().count("closed with ") == 2
    with signalbox.Client(server.url).acquire("billing/close-month", maximum=1):
        assert run() == "another machine closes the month\n"


REPORTS = """
import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export async function report(tenant, signal) {
  appendFileSync("begun", "x");
  while (!existsSync("end")) {
    await sleep(20, undefined, { signal });
  }
  return `report of ${tenant}`;
}
"""


def test_express_answers_429_to_more_requests_of_a_tenant_than_may_be_handled(server: Server) -> None:
    directory = WORK / "node"
    write(directory, {"app.mjs": PAGE["app.mjs"], "reports.mjs": REPORTS})
    with Program(directory, "node", "app.mjs", PORT="0", SIGNALBOX_URL=server.url) as app:
        app.says("listening on port ")
        port = app.output.split()[-1]
        url = f"http://127.0.0.1:{port}/report/"

        def curl(tenant: str) -> Program:
            return Program(directory, "curl", "--silent", "--show-error", "--include", url + tenant)

        with curl("7") as first, curl("7") as second:
            server.eventually("report/7", (2, 0))
            with curl("7") as third:
                assert third.end() == 0
                assert third.output.startswith("HTTP/1.1 429 "), third.output
                assert "\nRetry-After: 5" in third.output
            with curl("8"):
                server.eventually("report/8", (1, 0))
            server.eventually("report/8", (0, 0))  # The browser went away.
            (directory / "end").touch()
            for program in (first, second):
                assert program.end() == 0
                assert program.output.startswith("HTTP/1.1 200 "), program.output
                assert program.output.endswith("\nreport of 7"), program.output
        server.eventually("report/7", (0, 0))


PHP_AUTOLOAD = """<?php
require 'Symfony/Component/Console/autoload.php';
require 'Symfony/Component/Lock/autoload.php';
$client = [...glob('%(client)s/*.php'), '%(client)s/Symfony/SignalboxStore.php'];
foreach ([...$client, 'src/Command/ImportCommand.php', 'Catalogue.php'] as $file) {
    require_once $file;
}
"""

CATALOGUE = """<?php
namespace App;

final class Catalogue
{
    public function files(): array
    {
        return [$this, $this];
    }

    public function import(): void
    {
        echo "imported\\n";
    }
}
"""


HOLDS_A_LOCK = """
require 'vendor/autoload.php';
use Signalbox\\Client;
use Signalbox\\Symfony\\SignalboxStore;
use Symfony\\Component\\Lock\\LockFactory;
$lock = (new LockFactory(new SignalboxStore(new Client())))->createLock('import');
$lock->acquire();
echo "held\\n";
fgets(STDIN);
"""


def test_a_console_command_of_symfony_runs_on_one_machine(server: Server, tmp_path: Path) -> None:
    autoload = PHP_AUTOLOAD % {"client": ROOT / "clients/php/src"}
    write(tmp_path, {"vendor/autoload.php": autoload, "Catalogue.php": CATALOGUE, "console.php": PAGE["console.php"]})
    write(tmp_path, {"src/Command/ImportCommand.php": PAGE["src/Command/ImportCommand.php"]})

    def run() -> str:
        with Program(tmp_path, "php", "console.php", "app:import", SIGNALBOX_URL=server.url) as program:
            assert program.end() == 0, program.output
            return program.output

    assert run() == "imported\nimported\n"
    with Program(tmp_path, "php", "-r", HOLDS_A_LOCK, SIGNALBOX_URL=server.url) as other:
        other.says("held")
        assert run() == "another machine imports\n"
        assert other.end("go on\n") == 0
    assert run() == "imported\nimported\n"


@needs_java
def test_a_jdbc_job_is_refused_by_the_table_once_another_instance_took_over(server: Server, tmp_path: Path) -> None:
    write(tmp_path, {"Report.java": PAGE["Report.java"]})
    database = f"jdbc:h2:{tmp_path}/database"

    def java(*arguments: str) -> str:
        with Program(tmp_path, "java", "-cp", CLASSES, *arguments, SIGNALBOX_URL=server.url, DATABASE_URL=database) as program:
            assert program.end() == 0, program.output
            return program.output

    def sql(statements: str) -> str:
        return java("org.h2.tools.Shell", "-url", database, "-sql", statements)

    sql("CREATE TABLE report (name VARCHAR PRIMARY KEY, text VARCHAR, fence BIGINT); INSERT INTO report VALUES ('daily', '', 0)")
    assert java("Report.java") == "the report is written\n"
    assert "all is well" in sql("SELECT text FROM report")
    with signalbox.Client(server.url).acquire("report/daily", maximum=1):
        assert java("Report.java") == "another instance writes the report\n"
    sql("UPDATE report SET text = 'of a later holder', fence = 9223372036854775807")
    assert java("Report.java") == "another instance took over\n"
    assert "of a later holder" in sql("SELECT text FROM report")
    assert server.used("report/daily") == (0, 0)


QUERY = """
package main

import (
	"context"
	"os"
	"time"
)

func query(ctx context.Context, tenant, task string) error {
	for {
		if _, err := os.Stat("end"); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
"""


@pytest.mark.skipif(not shutil.which("go"), reason="Go is not installed")
def test_a_worker_in_go_gives_jobs_back_that_it_cannot_do(server: Server, tmp_path: Path) -> None:
    module = "github.com/signalbox/signalbox/clients/go"
    mod = f"module worker\n\ngo 1.22\n\nrequire {module} v0.0.0\n\nreplace {module} => {ROOT}/clients/go\n"
    write(tmp_path, {"worker.go": PAGE["worker.go"], "query.go": QUERY, "go.mod": mod})
    go = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    subprocess.run(["go", "build", "-o", "worker", "."], cwd=tmp_path, env={**os.environ, **go}, check=True)
    with Program(tmp_path, tmp_path / "worker", SIGNALBOX_URL=server.url) as worker:
        assert worker.process.stdin
        worker.process.stdin.write("blue one\nblue two\nred one\n")
        worker.process.stdin.flush()
        server.eventually("tenant/blue", (2, 0))
        server.eventually("tenant/red", (1, 0))
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end() == 0
        assert sorted(worker.output.splitlines()) == ["again: blue one", "again: blue two", "again: red one"]
    (tmp_path / "end").touch()
    with Program(tmp_path, tmp_path / "worker", SIGNALBOX_URL=server.url) as worker:
        assert worker.end("blue one\nblue two\nblue three\n") == 0
        assert len(worker.output.splitlines()) == 3
        assert worker.output.count("done: blue ") == 3
    assert server.used("tenant/blue") == (0, 0)
