"""The tables of docs/clients.md against the public names of each client: what a table names exists, and what exists is in a table."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Callable

import pytest
from recipes import ROOT, WORK

import signalbox
from signalbox import aio

TABLES = ("## Names", "## Options of an acquire", "## Configuration", "## Failures", "## Events")


def rows(heading: str) -> list[dict[str, str]]:
    """The rows of the table under a heading, as cells by the heading of their column."""
    section = (ROOT / "docs/clients.md").read_text().split(f"\n{heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert all(len(line) == len(cells[0]) for line in cells), heading
    return [dict(zip(cells[0], line)) for line in cells[2:]]


def named(language: str) -> set[str]:
    """The identifiers in the column of a language."""
    spans = [span for heading in TABLES for row in rows(heading) for span in re.findall("`([^`]*)`", row[language])]
    return {name for span in spans for name in re.findall(r"[A-Za-z]\w*", span)}


def python() -> set[str]:
    found: set[str] = set()
    for module in (signalbox, aio):
        for name in module.__all__:
            item = getattr(module, name)
            members = {member for member in {*vars(item), *dir(item)} if not member.startswith("_")}
            if issubclass(item, Exception):
                members -= set(dir(Exception))
            found |= {name, *members, *getattr(item, "__annotations__", {})}
            for member in ("__init__", *members):
                function = inspect.getattr_static(item, member, None)
                if inspect.isfunction(function) and not issubclass(item, Exception):
                    keywords = inspect.signature(function).parameters.values()
                    found |= {parameter.name for parameter in keywords if parameter.kind is parameter.KEYWORD_ONLY}
    return {*found, "reason", "urls", "aio"}


def node() -> set[str]:
    declared = WORK / "client/dist/src"
    exported = set(re.findall(r"(\w+)(?=,| })", (declared / "index.d.ts").read_text()))
    found = set(exported)
    for file in declared.glob("*.d.ts"):
        text = file.read_text()
        of_types = re.findall(r"^export type (\w+) = (.*?);\n(?=/|export|$)", text, re.DOTALL | re.MULTILINE)
        of_classes = re.findall(
            r"^export (?:declare )?(?:abstract )?(?:class|interface) (\w+)(.*?)^}", text, re.DOTALL | re.MULTILINE
        )
        for name, body in [*of_types, *of_classes]:
            if name in {*exported, "Happening"}:
                found |= set(re.findall(r"^    (?:readonly |get )?(\w+)\??(?:<[^(]*>)?[:(]", body, re.MULTILINE))
                found |= set(re.findall(r"readonly (\w+)\??:", body))
                found |= set(re.findall(r'type: "(\w+)"', body))
    return found - {"constructor"}


def go() -> set[str]:
    text = subprocess.run(
        ["go", "doc", "-all", "."], cwd=ROOT / "clients/go", check=True, capture_output=True, text=True
    ).stdout
    members = re.findall(r"^func (?:\(.*?\) )?([A-Z]\w*)", text, re.MULTILINE)
    types = re.findall(r"^type ([A-Z]\w*)", text, re.MULTILINE)
    fields = re.findall(r"^\t([A-Z]\w*) ", text, re.MULTILINE)
    # The methods that errors need.
    return {*members, *types, *fields} - {"Error", "Unwrap", "Is"} | {"Error"}


def java() -> set[str]:
    """The public names of the classes that the check has compiled."""
    classes = [str(file) for file in (WORK / "java/classes").glob("**/*.class")]
    shown = subprocess.run(["javap", "-public", *classes], check=True, capture_output=True, text=True).stdout
    found: set[str] = set()
    declaration = r"^public (?:\w+ )*(?:class|interface) (?:\w+[.$])*(\w+)[^{]*\{\n(.*?)^}"
    for name, body in re.findall(declaration, shown, re.DOTALL | re.MULTILINE):
        found |= {name, *re.findall(r"\b(\w+)(?:\(.*|;)$", body, re.MULTILINE)}
    return found - {"equals", "hashCode", "toString", "valueOf", "values"}


PHP = """
foreach (glob('%s/*.php') as $file) {
    require_once $file;
}
$found = [];
foreach (get_declared_classes() as $class) {
    $class = new ReflectionClass($class);
    if ($class->getNamespaceName() !== 'Signalbox' || str_contains((string) $class->getDocComment(), '@internal')) {
        continue;
    }
    $found[] = $class->getShortName();
    foreach ($class->getMethods(ReflectionMethod::IS_PUBLIC) as $method) {
        $isOurs = str_starts_with($method->class, 'Signalbox') && !str_contains((string) $method->getDocComment(), '@internal');
        if ($isOurs && (!$class->isSubclassOf(Exception::class) || $method->name !== '__construct')) {
            $found[] = $method->name === '__construct' ? $class->getShortName() : $method->name;
            foreach ($method->getParameters() as $parameter) {
                if ($parameter->isOptional() && !$parameter->isVariadic()) {
                    $found[] = $parameter->name;
                }
            }
        }
    }
    foreach ($class->getProperties(ReflectionProperty::IS_PUBLIC) as $property) {
        $found[] = $property->name;
    }
}
echo json_encode($found);
"""


def php() -> set[str]:
    script = PHP % (ROOT / "clients/php/src")
    return set(json.loads(subprocess.run(["php", "-r", script], check=True, capture_output=True, text=True).stdout))


PUBLIC: dict[str, Callable[[], set[str]]] = {"Python": python, "Node": node, "Go": go, "Java": java, "PHP": php}


@pytest.mark.parametrize("language", PUBLIC)
def test_the_tables_have_the_public_names_of_each_client(language: str) -> None:
    if language == "Go" and not shutil.which("go"):
        pytest.skip("Go is not installed")
    if language == "Java" and not (WORK / "java/classes").exists():
        pytest.skip("a JDK is not installed")
    public, in_tables = PUBLIC[language](), named(language)
    assert in_tables - public == set(), "docs/clients.md names what does not exist"
    assert public - in_tables == set(), "docs/clients.md leaves out what exists"


SOURCES = {
    "Python": [*(ROOT / "clients/python/src").glob("**/*.py")],
    "Node": [*(ROOT / "clients/typescript/src").glob("**/*.ts")],
    "Go": [file for file in (ROOT / "clients/go").glob("*.go") if not file.name.endswith("_test.go")],
    "Java": [*(ROOT / "clients/java/src/main").glob("**/*.java")],
    "PHP": [*(ROOT / "clients/php/src").glob("**/*.php")],
}


def source(language: str) -> str:
    return "".join(file.read_text() for file in SOURCES[language])


@pytest.mark.parametrize("language", SOURCES)
def test_each_client_reads_the_variables_of_the_table(language: str) -> None:
    in_table = {
        name for row in rows("## Configuration") for name in re.findall("SIGNALBOX_[A-Z_]+", row["environment"])
    }
    assert set(re.findall("SIGNALBOX_[A-Z_]+", source(language))) == in_table


@pytest.mark.parametrize("language", SOURCES)
def test_each_client_tells_the_events_of_the_table(language: str) -> None:
    kinds = [
        row["Node"].strip("`") for row in rows("## Events") if row["Go"].startswith("`Event") and row["Python"] == ""
    ]
    assert len(kinds) == 6
    assert [kind for kind in kinds if not re.search(rf"""["']{kind}["']|\b{kind.upper()}\b""", source(language))] == []


# Where each client has the times of the page, in seconds or milliseconds.
TIMES = {
    "A release waits for its answer": {
        "Python": r"^RELEASE_S = (.*)",
        "Node": r"^const RELEASE_MS_MAX = (.*);",
        "Go": r"releaseTime = (.*) \* time.Second",
        "Java": r"RELEASE_TIME = Duration.ofSeconds\((.*)\);",
        "PHP": r"RELEASE_SECONDS = (.*);",
    },
    "how long an acquire tries to reach a server": {
        "Python": r"unreachable_after: timedelta = timedelta\(seconds=(.*)\)",
        "Node": r"options.unreachableAfterMs\) \?\? (.*),",
        "Go": r"client.unreachableAfter = (.*) \* time.Second",
        "Java": r"unreachableAfter = Duration.ofSeconds\((.*)\);",
        "PHP": r"float \$unreachableAfterSeconds = (.*),",
    },
    "the time to live": {"Python": r"^TTL = timedelta\(seconds=(.*)\)", "Node": r"options.ttlMs\) \?\? (.*);"},
}


def test_each_client_has_the_times_of_the_tables() -> None:
    text = (ROOT / "docs/clients.md").read_text()
    for what, patterns in TIMES.items():
        [line] = [line for line in text.splitlines() if line.startswith((f"| {what}", f"- **{what}"))]
        [seconds] = set(re.findall(r"\b(\d+) s\b", line))
        for language, pattern in patterns.items():
            [found] = re.findall(pattern, source(language), re.MULTILINE)
            assert float(found) / (1000 if language == "Node" else 1) == int(seconds), (what, language)
