"""The virtual machine: its image, its start, its shell, and how it is suspended."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
IMAGE = TARGET / "machine"
START_MAX_S = 300
PACKAGES = "systemd-sysv,dbus,cron,logrotate,python3,iproute2,kmod,udev,linux-image-amd64,initramfs-tools,etcd-server,etcd-client"
# Only the modules of this machine, since others would delay its start.
INITRD = (
    'mkdir -p "$1/etc/initramfs-tools/conf.d" && echo MODULES=list >"$1/etc/initramfs-tools/conf.d/modules" && '
    'printf "virtio_pci\\nvirtio_blk\\nvirtio_net\\next4\\n" >"$1/etc/initramfs-tools/modules"'
)
ENABLE = 'for verb in "enable shell.socket systemd-networkd" "disable etcd"; do chroot "$1" systemctl --quiet $verb; done'

# They precede each script.
FUNCTIONS = Path(__file__).with_name("functions").read_text()


class Failed(Exception):
    """A check has found something that is not as promised."""


class Machine:
    """The virtual machine, which runs until `stop`. It reaches this one at 10.0.2.2, where `program` is signalbox."""

    def __init__(self, work, files, program):
        self.program = program
        self.shell, self.service = free_port(), free_port()
        self.console = work / "console"
        monitor = work / "monitor"
        command = f"""qemu-system-x86_64 -machine pc,accel={os.environ.get("SIGNALBOX_ACCEL", "tcg")} -cpu max -smp 2 -m 2G
            -display none -no-reboot -serial file:{self.console} -qmp unix:{monitor},server=on,wait=off
            -kernel {IMAGE}/vmlinuz -initrd {IMAGE}/initrd
            -drive file={IMAGE}/disk,format=raw,if=virtio,snapshot=on -drive file={files},format=raw,if=virtio,readonly=on
            -nic user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{self.shell}-:2222,hostfwd=tcp:127.0.0.1:{self.service}-:11215"""
        kernel = "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet"
        self.process = subprocess.Popen([*command.split(), "-append", kernel], stdin=subprocess.DEVNULL)
        try:
            self.await_start()
            self.control = socket.socket(socket.AF_UNIX)
            self.control.connect(str(monitor))
            self.answers = self.control.makefile()
            self.answers.readline()
            self.qmp("qmp_capabilities")
        except BaseException:
            self.stop()
            raise

    def await_start(self):
        for _ in range(START_MAX_S):
            time.sleep(1)
            if self.process.poll() is not None:
                raise Failed("QEMU has ended")
            try:
                return self.sh("true", limit=20)
            except (OSError, Failed):
                pass
        raise Failed("the machine does not start; its console:\n" + self.console.read_text()[-2000:])

    def sh(self, script, limit=300):
        """Runs a script of bash in the machine, as root, and returns what it prints. Raises `Failed` if a command fails."""
        output = b""
        with socket.create_connection(("127.0.0.1", self.shell), timeout=limit) as connection:
            connection.sendall((FUNCTIONS + script).encode())
            connection.shutdown(socket.SHUT_WR)
            try:
                while received := connection.recv(65536):
                    output += received
            except TimeoutError:
                output += b"no more output in time"
        text, _, status = output.decode(errors="replace").rpartition("status ")
        if status.strip() != "0":
            raise Failed(f"{text.strip() or 'no output'} (status {status.strip() or 'unknown'})")
        return text

    def qmp(self, command):
        """Executes a command of QEMU's monitor."""
        self.control.sendall(json.dumps({"execute": command}).encode() + b"\n")
        self.event("return")

    def event(self, name):
        """Waits for an event of QEMU, or for a `return`."""
        while True:
            line = self.answers.readline()
            if not line:
                raise Failed("QEMU has ended")
            message = json.loads(line)
            if name in message or message.get("event") == name:
                return
            if "error" in message:
                raise Failed(message["error"]["desc"])

    def suspend(self, seconds):
        """Suspends the machine to RAM for this time. Returns when it was suspended and when it was woken."""
        self.sh("systemd-run --quiet --on-active=1 --timer-property=AccuracySec=1ms sh -c 'echo mem >/sys/power/state'")
        self.event("SUSPEND")
        began = time.monotonic()
        time.sleep(seconds)
        self.qmp("system_wakeup")
        return began, time.monotonic()

    def freeze(self, seconds):
        """Stops the machine together with its clocks for this time. Returns when it was stopped and when it continued."""
        self.qmp("stop")
        began = time.monotonic()
        time.sleep(seconds)
        self.qmp("cont")
        return began, time.monotonic()

    def stop(self):
        self.process.kill()
        self.process.wait()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def make_image():
    if (IMAGE / "disk").exists():
        return
    print("making the image of the machine", flush=True)
    with tempfile.TemporaryDirectory(dir=TARGET) as root:
        here = Path(__file__).parent / "image" / "etc"
        hooks = [f"--essential-hook={INITRD}", f"--customize-hook=copy-in {here} /", f"--customize-hook={ENABLE}"]
        command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={PACKAGES}", *hooks, "bookworm", root]
        subprocess.run(command, check=True)
        IMAGE.mkdir(exist_ok=True)
        for name in ("vmlinuz", "initrd"):
            shutil.copy(next(Path(root, "boot").glob(f"{name}*")), IMAGE / name)
        subprocess.run(["mkfs.ext4", "-q", "-d", root, IMAGE / "new", "2G"], check=True)
        (IMAGE / "new").rename(IMAGE / "disk")
