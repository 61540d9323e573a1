"""What the documents promise of a machine with systemd, and of one that is suspended. Each check leaves nothing running."""

import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from itertools import chain

from machine import Failed, free_port

ALL = []

# Replaces the configuration of the service, and begins with it anew.
FRESH = r"""
fresh() {
    systemctl stop 'check-*' signalbox.socket signalbox.service
    systemctl reset-failed
    rm -rf /var/lib/signalbox /var/log/signalbox /run/systemd/system/{check-,signalbox.service.d}* /run/systemd/system.conf.d
    cat >/etc/signalbox.toml
    systemctl daemon-reload
}
"""


def check(function):
    """Adds a check: its document says what is promised, and it returns what else is worth knowing."""
    ALL.append(function)
    return function


# The packaged service: docs/operations.md, "The service".


@check
def starts(machine):
    """the installation starts nothing, and `systemctl start` returns when the server answers"""
    machine.sh(
        FRESH
        + r"""
        [ "$(systemctl is-enabled signalbox.service signalbox.socket || true)" = $'disabled\ndisabled' ]
        fails systemctl --quiet is-active signalbox.service signalbox.socket
        fresh <<<'data_dir = "/var/lib/signalbox"'
        systemctl start signalbox
        signalbox ping --count 1
        [ "$(stat -c %U:%a /var/lib/signalbox /var/lib/signalbox/*)" = $'signalbox:700\nsignalbox:600\nsignalbox:600' ]
        [ "$(stat -c %U "/proc/$(systemctl show -P MainPID signalbox)")" = signalbox ]
        journalctl --unit signalbox | grep 'signalbox is ready'
        """
    )


@check
def is_confined(machine):
    """the unit exposes little of the system to the server"""
    text = machine.sh("systemd-analyze security --threshold=20 signalbox | tail -n 1")
    return text.strip().lstrip("→ ")


@check
def reloads(machine):
    """a reload applies what has changed in the file, and refuses a file with a mistake"""
    machine.sh(
        FRESH
        + r"""
        declared() { printf '[[semaphore.declare]]\nname = "gpus"\ncapacity = %s\n' "$1"; }
        declared 3 | fresh
        systemctl start signalbox
        started=$(systemctl show -P MainPID signalbox)
        declared 4 >/etc/signalbox.toml
        systemctl reload signalbox
        await 'signalbox list --json | grep "\"capacity\":4"'
        echo 'capacity = ' >>/etc/signalbox.toml
        fails systemctl reload signalbox
        signalbox list --json | grep '"capacity":4'
        [ "$(systemctl show -P MainPID signalbox)" = "$started" ]
        """
    )


@check
def keeps_over_restarts(machine):
    """a restart and a kill of the server with a data directory keep what leased sessions hold and what is declared"""
    machine.sh(
        FRESH
        + r"""
        fresh <<<'data_dir = "/var/lib/signalbox"'
        systemctl start signalbox
        signalbox declare licences --capacity 8
        systemd-run --quiet --unit check-job -p Type=exec signalbox run licences=2 --lease 60 -- sleep infinity
        eval "$(signalbox acquire seat --max 1 --lease 60)"
        await "signalbox status --holders licences | grep -q ."
        systemctl restart signalbox
        signalbox renew
        signalbox list --json | grep '"in_use":2'
        systemctl kill --kill-who=main --signal=KILL signalbox
        await '[ "$(systemctl show -P NRestarts signalbox)" = 1 ]'
        await 'signalbox ping --count 1'
        signalbox renew
        signalbox list --json | grep '"in_use":2'
        systemctl --quiet is-active check-job
        systemctl stop check-job
        await 'signalbox list --json | grep "\"in_use\":0"'
        systemctl stop signalbox
        [ "$(systemctl show -P Result signalbox)" = success ]
        """
    )


@check
def is_activated_by_its_socket(machine):
    """the first client starts the server, and no client is refused while it restarts"""
    machine.sh(
        FRESH
        + r"""
        fresh <<<''
        systemctl start signalbox.socket
        fails systemctl --quiet is-active signalbox
        signalbox ping --count 1
        systemctl --quiet is-active signalbox
        systemd-run --quiet --unit check-pings -p Type=exec sh -c 'while signalbox ping --count 1 --timeout 30s; do :; done'
        for _ in 1 2; do systemctl restart signalbox; done
        systemctl stop signalbox
        signalbox ping --count 1 --timeout 30s
        systemctl --quiet is-active check-pings
        systemctl stop check-pings signalbox.socket signalbox
        """
    )


@check
def rotates_its_log(machine):
    """logrotate rotates the log, the server writes to the new file, and the unit may write to no other directory"""
    machine.sh(
        FRESH
        + r"""
        fresh <<<$'[log]\nfile = "/var/log/signalbox/signalbox.log"'
        systemctl start signalbox
        grep 'is ready' /var/log/signalbox/signalbox.log
        logrotate --force /etc/logrotate.d/signalbox
        grep 'is ready' /var/log/signalbox/signalbox.log.1
        systemctl kill --kill-who=main --signal=USR1 signalbox
        await 'grep "checked the accounting" /var/log/signalbox/signalbox.log'
        [ "$(stat -c %U /var/log/signalbox/signalbox.log)" = signalbox ]
        fresh <<<$'[log]\nfile = "/srv/signalbox.log"'
        fails systemctl start signalbox
        [ "$(systemctl show -P ExecMainStatus signalbox)" = 74 ]
        """
    )


@check
def awaits_addresses(machine):
    """an address of bind_ip and http.bind_ip may arrive after the start"""
    machine.sh(
        FRESH
        + r"""
        ip address delete 10.9.9.9/32 dev lo 2>/dev/null || true
        fresh <<<$'bind_ip = ["127.0.0.1", "10.9.9.9"]\n[http]\nenable = true\nbind_ip = "10.9.9.9"'
        systemctl start signalbox
        signalbox ping --count 1
        fails signalbox ping --count 1 --server 10.9.9.9 --timeout 2s
        ip address add 10.9.9.9/32 dev lo
        signalbox ping --count 1 --server 10.9.9.9
        python3 -c 'import socket; socket.create_connection(("10.9.9.9", 11217))'
        ip address delete 10.9.9.9/32 dev lo
        systemctl stop signalbox
        """
    )


# `signalbox run` as a service: docs/run.md, "As a service of systemd".

# The unit of the document for each instance, which has a short time to start by default, and writes what it does.
SERVICES = (
    FRESH
    + r"""
services() {
    fresh <<<''
    systemctl start signalbox
    mkdir -p /run/systemd/system.conf.d
    printf '[Manager]\nDefaultTimeoutStartSec=5s\n' >/run/systemd/system.conf.d/short.conf
    cat >/srv/command <<'END'
#!/bin/sh
trap 'echo "$1 asked to stop" >>/srv/events; sleep 1; echo "$1 stopped" >>/srv/events; trap - TERM; kill -TERM $$' TERM
echo "$1 started" >>/srv/events
systemd-notify --ready --status=working
while :; do sleep 0.2; done
END
    chmod +x /srv/command
    : >/srv/events
    printf '%s\n' [Service] Type=notify NotifyAccess=all KillMode=mixed TimeoutStartSec=infinity Restart=always "${@}" \
        'ExecStart=signalbox run scheduler --max 1 --wait max --lease 30 --kill-after 80 -- /srv/command %i' \
        >/run/systemd/system/check-@.service
    systemctl daemon-reload
}
end_services() {
    systemctl stop 'check-*'
    rm -r /run/systemd/system/check-@.service /run/systemd/system.conf.d
    systemctl daemon-reload
    systemctl stop signalbox
}
is() { systemctl show -P "$2" "check-@$1" | grep -x "$3"; }
"""
)


@check
def waits_as_standby(machine):
    """`run` in a unit: ready when its command is, a standby waits without a timeout, and follows when the other one ends"""
    machine.sh(
        SERVICES
        + r"""
        services
        systemctl start check-@a
        is a StatusText working
        systemctl start --no-block check-@b
        sleep 8
        is b ActiveState activating
        [ "$(cat /srv/events)" = 'a started' ]
        systemctl stop check-@a
        is a Result success
        is a ActiveState inactive
        await 'is b ActiveState active'
        [ "$(cat /srv/events)" = $'a started\na asked to stop\na stopped\nb started' ]
        # A standby that is stopped has not failed either, nor does it take what becomes free.
        systemctl start --no-block check-@a
        await 'signalbox status scheduler | grep -i wait'
        systemctl stop check-@a
        is a Result success
        is a ActiveState inactive
        is b NRestarts 0
        end_services
        """
    )


# Machines that are suspended: docs/run.md, "What `run` cannot do".


@contextmanager
def server(machine):
    """A server on this machine. Returns its port and its process; the virtual machine reaches it at 10.0.2.2."""
    ports = [free_port() for _ in range(2)]
    options = zip(("--counter-port", "--semaphore-port"), map(str, ports))
    process = subprocess.Popen([machine.program, "serve", *chain(*options)], stderr=subprocess.DEVNULL)
    try:
        command(machine, ports[0], "ping", "--count", "1", "--timeout", "30s").wait()
        yield ports[0], process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def command(machine, port, *arguments):
    """A command of signalbox on this machine, which is started."""
    words = [machine.program, *arguments[:1], "--server", f"127.0.0.1:{port}", *arguments[1:]]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Beacons:
    """When datagrams of a command in the virtual machine arrive, so that its life is measured by the clock of this one."""

    COMMAND = r"""
cat >/srv/beacon <<'END'
import signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    sender.sendto(b".", ("10.0.2.2", int(sys.argv[1])))
    time.sleep(0.05)
END
"""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.first = threading.Event()
        self.arrivals = []
        threading.Thread(target=self.receive, daemon=True).start()

    def receive(self):
        while self.socket.recv(1):
            self.arrivals.append(time.monotonic())
            self.first.set()


def overlap(machine, suspend, seconds):
    """A command holds a lease of 10 s and ignores SIGTERM while its machine is suspended, and another one waits here for the same
    resource. Returns the messages of `run`, and for how long the first command ran after its machine had continued."""
    beacons = Beacons()
    with server(machine) as (port, _):
        machine.sh(
            FRESH
            + Beacons.COMMAND
            + f"""fresh <<<''
            systemd-run --quiet --unit check-held signalbox run m --max 1 --lease 10 --server 10.0.2.2:{port} -- python3 /srv/beacon {beacons.port}
            """
        )
        if not beacons.first.wait(60):
            raise Failed("the command does not start")
        other = command(machine, port, "run", "m", "--max", "1", "--wait", "max", "--", "sh", "-c", "echo started; exec sleep 600")
        try:
            _, continued = suspend(seconds)
            if other.stdout.readline() != "started\n":
                raise Failed("the other command did not start")
            messages = machine.sh(
                r"""
                await '! systemctl --quiet is-active check-held'
                [ "$(systemctl show -P ExecMainStatus check-held)" = 69 ] || systemctl show check-held | grep ExecMain
                journalctl --output cat _SYSTEMD_INVOCATION_ID="$(systemctl show -P InvocationID check-held)" | grep ^signalbox:
                systemctl reset-failed check-held
                """
            )
        finally:
            other.terminate()
            other.wait()
    after = [arrival for arrival in beacons.arrivals if arrival > continued]
    return messages, after[-1] - after[0] if after else 0


@check
def ends_at_resumption(machine):
    """on a machine that was suspended for longer than the lease, SIGKILL is the first thing that happens to the command"""
    messages, ran = overlap(machine, machine.suspend, 25)
    if "SIGTERM" in messages or "SIGKILL" not in messages:
        raise Failed(messages)
    return f"it ran for {ran:.2f} s beside the next holder"


@check
def ends_when_server_says_so(machine):
    """in a virtual machine that was stopped together with its clocks, the command ends when the server says that its lease is over"""
    messages, ran = overlap(machine, machine.freeze, 25)
    if "the server no longer knows the lease" not in messages:
        raise Failed(messages)
    return f"it ran for {ran:.2f} s beside the next holder"


@check
def warns_after_resumption(machine):
    """time in which the machine was suspended counts: a lease that cannot be renewed afterwards ends with SIGTERM first"""
    beacons = Beacons()
    with server(machine) as (port, process):
        machine.sh(
            FRESH
            + Beacons.COMMAND
            + f"""fresh <<<''
            systemd-run --quiet --unit check-held signalbox run m --max 1 --lease 60 --server 10.0.2.2:{port} -- python3 /srv/beacon {beacons.port}
            """
        )
        if not beacons.first.wait(60):
            raise Failed("the command does not start")
        process.send_signal(signal.SIGSTOP)
        machine.suspend(30)
        messages = machine.sh(
            r"""
            await '! systemctl --quiet is-active check-held'
            [ "$(systemctl show -P ExecMainStatus check-held)" = 69 ]
            journalctl --output cat _SYSTEMD_INVOCATION_ID="$(systemctl show -P InvocationID check-held)" | grep ^signalbox:
            systemctl reset-failed check-held
            """
        )
    if "cannot be renewed and ends in" not in messages:
        raise Failed(messages)
