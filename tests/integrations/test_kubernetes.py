"""The manifests of etc/kubernetes: Kubernetes' own schemas, and the server with what they give it."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from recipes import ROOT, Program, Shell, blocks, eventually

import signalbox

PAGE = blocks("docs/integrations.md")
SIGNALBOX = os.environ["SIGNALBOX_BIN"]
FILES = ("server.yaml", "cluster.yaml")
HOST = "signalbox.default.svc"
NODES = [f"127.11.217.{number}" for number in (1, 2, 3)]
ETCD = "127.11.217.9"


def manifests(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "etc/kubernetes" / file).read_text()))


def free_port(address: str) -> int:
    with socket.socket() as free:
        free.bind((address, 0))
        port: int = free.getsockname()[1]
        return port


# Makes a folder for each Secret, as the volume of a Pod has it.
KUBECTL = """
[ "$1 $2" = "create secret" ] && name=$4 && shift 4 && mkdir "$name"
for option; do
    case $option in
        --cert=*) cp "${option#*=}" "$name/tls.crt" ;;
        --key=*) cp "${option#*=}" "$name/tls.key" ;;
        --from-file=*=*) option=${option#*=} && cp "${option#*=}" "$name/${option%%=*}" ;;
        --from-file=*) cp "${option#*=}" "$name" ;;
    esac
done
"""


class Secrets:
    """The Secrets that docs/integrations.md makes, each a folder."""

    def __init__(self, directory: Path) -> None:
        addresses = [f"IP:{address}" for address in (*NODES, ETCD)]
        names = ",".join([f"DNS:{HOST}", *addresses])
        new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        request = [*new, "-subj", "/CN=signalbox", "-addext", f"subjectAltName={names}"]
        signer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy"]
        commands: list[list[str]] = [
            [*new, "-x509", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"],
            [*request, "-keyout", "server.key", "-out", "server.csr"],
            ["openssl", "x509", "-req", "-in", "server.csr", *signer, "-days", "90", "-out", "server.pem"],
        ]
        for command in commands:
            subprocess.run(command, cwd=directory, check=True, capture_output=True)
        for copy, file in (("etcd-ca.pem", "ca.pem"), ("etcd.pem", "server.pem"), ("etcd.key", "server.key")):
            (directory / copy).symlink_to(file)
        shell = Shell(SIGNALBOX, directory, kubectl=KUBECTL)
        with shell.run(PAGE["secrets.sh"]) as making:
            assert making.end() == 0, making.output
        self.directory = directory
        self.ca = directory / "ca.pem"
        self.token = (directory / "app.token").read_text().strip()


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    directory = tmp_path / "secrets"
    directory.mkdir()
    return Secrets(directory)


class Pod:
    """The container of a StatefulSet, in a directory that has its volumes."""

    def __init__(self, file: str, secrets: Secrets, directory: Path, address: str, **variables: str) -> None:
        everything = manifests(file)
        maps = {item["metadata"]["name"]: item["data"] for item in everything if item["kind"] == "ConfigMap"}
        [stateful] = [item for item in everything if item["kind"] == "StatefulSet"]
        spec = stateful["spec"]["template"]["spec"]
        [self.container] = spec["containers"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        self.directory = directory
        self._paths = {mount["mountPath"]: directory / mount["name"] for mount in self.container["volumeMounts"]}
        for mount in self.container["volumeMounts"]:
            volume = volumes.get(mount["name"], {})
            (directory / mount["name"]).mkdir(parents=True)
            for name, text in maps.get(volume.get("configMap", {}).get("name"), {}).items():
                (directory / mount["name"] / name).write_text(self.here(text))
            if "secret" in volume:
                for key in (secrets.directory / volume["secret"]["secretName"]).iterdir():
                    copy = shutil.copy(key, directory / mount["name"])
                    Path(copy).chmod(volume["secret"]["defaultMode"])
        fields = {"status.podIP": address, "metadata.name": directory.name}
        self.environment: dict[str, str] = {}
        for variable in self.container.get("env", []):
            value = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            for name, known in self.environment.items():
                value = value.replace(f"$({name})", known)
            self.environment[variable["name"]] = value
        self.environment |= variables
        self.address, self.http_port = address, free_port(address)
        [self.config] = [argument for argument in map(self.here, self.container["args"]) if argument.endswith(".toml")]

    def here(self, text: str) -> str:
        """A text with the directories of the test instead of those of the container."""
        for path, directory in self._paths.items():
            text = re.sub(rf"{path}(?![\w-])", str(directory), text)
        return text

    def command(self, *arguments: str) -> Program:
        return Program(self.directory, SIGNALBOX, *arguments, **self.environment)

    def serve(self) -> Program:
        """The server as in the container, but on one address of loopback, and on free ports."""
        self.environment["SIGNALBOX_CONFIG_HTTP__BIND_IP"] = self.address
        ports = [
            "--bind",
            self.address,
            "--counter-port",
            "0",
            "--semaphore-port",
            "0",
            "--http-port",
            str(self.http_port),
        ]
        return self.command(*map(self.here, self.container["args"]), *ports)

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """A request like those of kubelet, which checks no certificates; the status is 0 without an answer."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(self.address, self.http_port, timeout=10, context=context)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode().strip()
        except OSError as error:
            return 0, str(error)
        finally:
            connection.close()

    def probe(self, kind: str) -> tuple[int, str]:
        probe = self.container[kind]["httpGet"]
        assert (probe["port"], probe["scheme"]) == ("http", "HTTPS")
        return self.get(probe["path"])

    def acquire(self, secrets: Secrets) -> int:
        """The fencing token of a lease over HTTP."""
        client = signalbox.Client(f"https://{self.address}:{self.http_port}", ca=str(secrets.ca), token=secrets.token)
        with client.acquire("of the test", maximum=1) as permit:
            return permit.fence


@pytest.mark.parametrize("file", FILES)
def test_the_manifests_fit_the_schemas_of_kubernetes(file: str) -> None:
    for manifest in manifests(file):
        kubernetes_validate.validate(manifest, "1.37", strict=True)


@pytest.mark.parametrize("file", FILES)
def test_the_manifests_fit_each_other_and_the_image(file: str) -> None:
    everything = manifests(file)
    [stateful] = [item for item in everything if item["kind"] == "StatefulSet"]
    [container] = stateful["spec"]["template"]["spec"]["containers"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    services = [item for item in everything if item["kind"] == "Service"]
    assert stateful["spec"]["serviceName"] in [service["metadata"]["name"] for service in services]
    for service in services:
        assert service["spec"]["selector"] == labels
        assert {port["name"]: port["port"] for port in service["spec"]["ports"]}.items() <= ports.items()
    for item in everything:
        selector = item.get("spec", {}).get("selector", item.get("spec", {}).get("podSelector", {}))
        assert selector.get("matchLabels", labels) == labels
    [version] = re.findall('^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert container["image"].endswith(f":{version}")
    user = stateful["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert f"\nUSER {user}:{user}\n" in (ROOT / "Dockerfile").read_text()
    exposed = (ROOT / "Dockerfile").read_text().split("\nEXPOSE ")[1].split("\n")[0].split()
    assert {str(port) for name, port in ports.items() if name != "relay"} == set(exposed)


@pytest.mark.parametrize("file", FILES)
def test_the_server_accepts_the_configuration(file: str, secrets: Secrets, tmp_path: Path) -> None:
    pod = Pod(file, secrets, tmp_path / "signalbox-0", NODES[0])
    with pod.command("check-config", pod.config) as check:
        assert check.end() == 0, check.output
        for name in pod.environment:
            assert name == "POD_IP" or name in check.output, f"{name} is not read: {check.output}"


def test_one_server_serves_as_its_manifest_says(secrets: Secrets, tmp_path: Path) -> None:
    pod = Pod("server.yaml", secrets, tmp_path / "signalbox-0", NODES[0])
    with pod.serve():
        eventually("it is ready", lambda: pod.probe("readinessProbe") == (200, "serving"))
        assert pod.probe("livenessProbe") == (200, "ok")
        for name in ("signalbox", HOST, f"{HOST}.cluster.local"):
            assert pod.get("/api/v1/status", Host=name, Authorization=f"Bearer {secrets.token}")[0] == 200, name
        assert pod.acquire(secrets) > 0
    assert any(Path(pod.here("/var/lib/signalbox")).iterdir())


@pytest.fixture
def etcd(secrets: Secrets, tmp_path: Path) -> Iterator[str]:
    if not shutil.which("etcd"):
        pytest.skip("etcd is not installed (Debian: etcd-server)")
    client, peer = (f"https://{ETCD}:{free_port(ETCD)}" for _ in range(2))
    files = {"cert-file": "server.pem", "key-file": "server.key", "trusted-ca-file": "ca.pem"}
    options = [
        f"--{prefix}{option}={secrets.directory / file}" for prefix in ("", "peer-") for option, file in files.items()
    ]
    names = [f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"]
    names += [f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}", "--client-cert-auth"]
    with Program(tmp_path, "etcd", f"--data-dir={tmp_path / 'etcd'}", *options, *names):
        yield client


def test_three_nodes_serve_and_relay_as_their_manifest_says(secrets: Secrets, etcd: str, tmp_path: Path) -> None:
    variable = {"SIGNALBOX_CONFIG_CLUSTER__ETCD": etcd}
    pods = [
        Pod("cluster.yaml", secrets, tmp_path / f"signalbox-{number}", address, **variable)
        for number, address in enumerate(NODES)
    ]
    with ExitStack() as running:
        for pod in pods:
            running.enter_context(pod.serve())

        def states() -> list[tuple[int, str]]:
            return sorted(pod.probe("readinessProbe") for pod in pods)

        eventually("one leads", lambda: states() == [(200, "relaying"), (200, "relaying"), (200, "serving")])
        for pod in pods:
            assert pod.probe("livenessProbe") == (200, "ok")
            assert pod.acquire(secrets) > 0
