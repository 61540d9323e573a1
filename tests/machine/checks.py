"""What the documents promise for a machine with systemd, and for one that is suspended. `fresh` removes what another check left."""

import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from itertools import chain

from machine import Failed, free_port

ALL = []


def check(function):
    """Adds a check: its docstring says what is promised, and it returns what else is worth knowing."""
    ALL.append(function)
    return function


# The packaged service: docs/operations.md, "The service".


@check
def starts(machine):
    """the installation starts nothing, and `systemctl start` returns when the server answers"""
    machine.sh(r"""
        [ "$(systemctl is-enabled signalbox.service signalbox.socket || true)" = $'disabled\ndisabled' ]
        fails systemctl --quiet is-active signalbox.service signalbox.socket
        fresh <<<'data_dir = "/var/lib/signalbox"'
        systemctl start signalbox
        signalbox ping --count 1
        [ "$(stat -c %U:%a /var/lib/signalbox /var/lib/signalbox/*)" = $'signalbox:700\nsignalbox:600\nsignalbox:600' ]
        [ "$(stat -c %U "/proc/$(systemctl show -P MainPID signalbox)")" = signalbox ]
        journalctl --unit signalbox | grep 'signalbox is ready'
        """)


@check
def reloads(machine):
    """a reload applies what has changed in the file, and refuses a file with a mistake"""
    machine.sh(r"""
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
        """)


@check
def keeps_over_restarts(machine):
    """a restart and a kill of the server with a data directory keep what leased sessions hold and what is declared"""
    machine.sh(r"""
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
        """)


@check
def is_activated_by_its_socket(machine):
    """the first client starts the server, and no client is refused while it restarts"""
    machine.sh(r"""
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
        """)


@check
def rotates_its_log(machine):
    """logrotate rotates the log, the server writes to the new file, and the unit may write to no other directory"""
    machine.sh(r"""
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
        """)


@check
def awaits_addresses(machine):
    """an address of bind_ip and http.bind_ip may arrive after the start"""
    machine.sh(r"""
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
        """)


# Two nodes: docs/cluster.md, "The nodes".


@check
def hands_over_when_killed(machine):
    """after SIGKILL of the leader, ExecStopPost gives up its leadership; the address of cluster.bind may arrive after the start"""
    return machine.sh(r"""
        deadline=10 cluster >/dev/null 2>&1
        systemctl kill --kill-who=main --signal=KILL signalbox
        began=${EPOCHREALTIME/./}
        await 'signalbox ping --count 1 --timeout 60s --server 127.0.0.1:21216'
        echo "the other node served after $(((${EPOCHREALTIME/./} - began) / 1000)) ms, instead of 11.1 s"
        await 'leader two'
        journalctl --unit signalbox | grep 'node "one" led, and another node may lead now' >/dev/null
        """).strip()


@check
def keeps_leadership_of_stuck_process(machine):
    """after SIGKILL and its timeout, ExecStopPost gives up nothing while the leader or another process of the service is left"""
    machine.sh(r"""
        stick
        cluster $'[log]\nfile = "/srv/stuck/log"' $'[Service]\nReadWritePaths=/srv/stuck'
        fsfreeze --freeze /srv/stuck
        # The thread of the log waits. SIGKILL comes before the server could give up the leadership by itself.
        systemctl kill --kill-who=main --signal=USR1 signalbox
        await 'grep "State:.D" /proc/$(systemctl show -P MainPID signalbox)/task/*/status'
        systemctl kill --kill-who=main --signal=KILL signalbox
        systemctl stop --no-block signalbox
        is_kept 1
        ss --tcp --listening --numeric | grep ':21215 '
        thaw

        stick
        cluster
        fsfreeze --freeze /srv/stuck
        sh -c 'echo $$ >/sys/fs/cgroup/system.slice/signalbox.service/cgroup.procs; echo >/srv/stuck/file' &
        systemctl kill --kill-who=main --signal=KILL signalbox
        is_kept 2
        thaw
        """)


# `signalbox run` as a service: docs/run.md, "As a service of systemd".


@check
def waits_as_standby(machine):
    """`run` in a unit: ready when its command is, a standby waits without a timeout, and follows when the other one ends"""
    machine.sh(r"""
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
        """)


@check
def takes_turns(machine):
    """units with Restart=always hand over when a command dies by a signal, when it is revoked, and when `run` is killed"""
    machine.sh(r"""
        services
        systemctl start check-@a
        systemctl start --no-block check-@b
        await 'signalbox status scheduler | grep -i wait'
        for process in $(cat /sys/fs/cgroup/system.slice/system-check*.slice/check-@a.service/cgroup.procs); do
            [ "$(cat "/proc/$process/comm")" != command ] || kill -SEGV "$process"
        done
        await 'is b ActiveState active'
        is a NRestarts 1
        journalctl --unit check-@a | grep "Failed with result 'signal'"
        await 'signalbox status scheduler | grep -i wait'
        signalbox revoke scheduler --grace 0 --yes
        await 'is a ActiveState active'
        await 'signalbox status scheduler | grep -i wait'
        systemctl kill --kill-who=main --signal=KILL check-@a
        await 'is b ActiveState active'
        [ "$(grep -c started /srv/events)" = 4 ]
        """)


@check
def is_stopped_with_its_command(machine):
    """`systemctl stop` with KillMode=control-group, by which systemd asks the command too, releases after the command has ended"""
    machine.sh(r"""
        services KillMode=control-group
        systemctl start check-@a
        systemctl start --no-block check-@b
        await 'signalbox status scheduler | grep -i wait'
        systemctl stop check-@a
        is a Result success
        await 'is b ActiveState active'
        [ "$(uniq /srv/events)" = $'a started\na asked to stop\na stopped\nb started' ]
        """)


@check
def runs_from_systemd_run_and_cron(machine):
    """`systemd-run` has the status of the command or 75, and a job of cron waits for its turn"""
    machine.sh(r"""
        services
        status=0
        systemd-run --quiet --wait --unit check-status signalbox run job --max 1 --lease 10 -- sh -c 'exit 7' || status=$?
        [ "$status" = 7 ]
        systemd-run --quiet --unit check-holder -p Type=exec signalbox run job --max 1 --lease 10 -- sleep infinity
        await '[ "$(signalbox get job)" = 1 ]'
        systemd-run --quiet --wait --unit check-busy -p SuccessExitStatus=75 signalbox run job --max 1 -- true
        echo '* * * * * root signalbox run job --max 1 --wait 50s -- sh -c "echo cron started >>/srv/events"' >/etc/cron.d/check
        systemctl start cron
        await 'signalbox status job | grep -i wait'
        [ ! -s /srv/events ]
        systemctl stop check-holder
        await 'grep "cron started" /srv/events'
        rm /etc/cron.d/check
        """)


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
    """Starts a command of signalbox on this machine."""
    words = [machine.program, *arguments[:1], "--server", f"127.0.0.1:{port}", *arguments[1:]]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Beacons:
    """The arrival times of datagrams of a command in the virtual machine: its life, measured by the clock of this machine."""

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


def hold(machine, port, lease):
    """Starts a command in the virtual machine that holds a lease, sends beacons, and ignores SIGTERM."""
    beacons = Beacons()
    run = f"signalbox run m --max 1 --lease {lease} --server 10.0.2.2:{port} -- python3 /srv/beacon {beacons.port}"
    machine.sh(f"fresh <<<''\nsystemd-run --quiet --unit check-held {run}")
    if not beacons.first.wait(60):
        raise Failed("the command does not start")
    return beacons


def await_end(machine):
    """Waits until `run` has ended as it does when it loses its lease, and returns its messages."""
    return machine.sh(r"""
        await '! systemctl --quiet is-active check-held'
        [ "$(systemctl show -P ExecMainStatus check-held)" = 69 ]
        journalctl --output cat _SYSTEMD_INVOCATION_ID="$(systemctl show -P InvocationID check-held)" | grep ^signalbox:
        systemctl reset-failed check-held
        """)


def overlap(machine, suspend, seconds):
    """A command holds a lease of 10 s while its machine is suspended, and another one waits here for the same resource. Returns
    the messages of `run`, and for how long the first command ran after its machine had continued."""
    with server(machine) as (port, _):
        beacons = hold(machine, port, 10)
        other = command(machine, port, "run", "m", "--max", "1", "--wait", "max", "--", "sh", "-c", "echo started; exec sleep 600")
        try:
            _, continued = suspend(seconds)
            if other.stdout.readline() != "started\n":
                raise Failed("the other command did not start")
            messages = await_end(machine)
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
    return f"it ran for {ran:.2f} s together with the next holder"


@check
def ends_when_server_says_so(machine):
    """in a virtual machine that was stopped with its clocks, the command ends when the server says that its lease is over"""
    messages, ran = overlap(machine, machine.freeze, 25)
    if "the server no longer knows the lease" not in messages:
        raise Failed(messages)
    return f"it ran for {ran:.2f} s together with the next holder"


@check
def warns_after_resumption(machine):
    """time in which the machine was suspended counts: a lease that cannot be renewed afterwards ends with SIGTERM first"""
    with server(machine) as (port, process):
        hold(machine, port, 60)
        process.send_signal(signal.SIGSTOP)
        machine.suspend(30)
        messages = await_end(machine)
    if "cannot be renewed and ends in" not in messages:
        raise Failed(messages)


@check
def serves_after_suspension(machine):
    """a server that was suspended renews the leases that last, and frees the others when they are over"""

    def to_server(*arguments):
        return command(machine, machine.service, *arguments)

    def freed(name):
        waiting = to_server("run", name, "--max", "1", "--wait", "max", "--timeout", "60s", "--", "true")
        if waiting.wait(120):
            raise Failed(f"waiting for {name}: {waiting.stdout.read()}")
        return time.monotonic()

    machine.sh("fresh <<<'bind_ip = \"\"'\nsystemctl start signalbox")
    renewing = to_server("run", "long", "--max", "1", "--lease", "60", "--", "sleep", "60")
    began = time.monotonic()
    for name, lease in (("short", "10"), ("middle", "50")):
        if to_server("acquire", name, "--max", "1", "--lease", lease).wait(60):
            raise Failed(f"{name} is not acquired")
    _, woken = machine.suspend(20)
    machine.sh("true")
    short = freed("short") - woken
    middle = freed("middle") - began
    # docs/semantics.md: the pause, which the clock of the machine measures in whole seconds, is added to every lease.
    if middle < 68:
        raise Failed(f"a lease of 50 s was over after {middle:.1f} s")
    if renewing.wait(120):
        raise Failed(renewing.stdout.read())
    machine.sh("systemctl kill --kill-who=main --signal=USR1 signalbox\nawait 'journalctl --unit signalbox | grep \"failures=0\"'")
    return f"one that was over was free {short:.1f} s after the resumption, and one of 50 s after {middle:.1f} s"
