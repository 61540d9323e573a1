"""A driver of `signalbox run` (docs/run.md): `python3 conformance/run.py PROGRAM`.

A permit is a command that runs. It is believed to be held for as long as the command lives, and the command ignores SIGTERM: so `run`
must end it before the resources may be granted to others.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM = sys.argv[1]
# It says what it holds and passes its events on, until it reads a line (the work is done: it exits with 0) or the end (with 1).
COMMAND = 'trap "" TERM; echo "held $$ $SIGNALBOX_GRANT $SIGNALBOX_SLOTS"; cat "/dev/fd/$SIGNALBOX_EVENTS_FD" & read -r end'
DONE, UNREACHABLE = 100, 69
permits = {}


def say(**message):
    # One write, since several threads say something.
    os.write(1, (json.dumps(message) + "\n").encode())


def name(claim):
    resources, maximum = claim.get("resources", 1), claim.get("maximum")
    return f"{claim['name']}={resources}" + ("" if maximum is None else f":{maximum}")


class Run:
    def __init__(self, command):
        self.permit, self.waits = command["permit"], command["wait_ms"] > 0
        self.process, self.alive, self.released = None, None, False
        self.arguments = [PROGRAM, "run", "--timeout", "3", "--lease", str(command["ttl_ms"] / 1000)]
        if self.waits:
            self.arguments += ["--wait", str(command["wait_ms"] / 1000)]
        if command.get("share"):
            self.arguments += ["--share", "--done-status", str(DONE)]
        self.arguments += [*map(name, command["claims"]), "--", "sh", "-c", COMMAND]
        self.start()
        threading.Thread(target=self.run, args=[command["id"]], daemon=True).start()

    def start(self):
        self.errors = tempfile.TemporaryFile("w+")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.arguments, stdin=pipe, stdout=pipe, stderr=self.errors, text=True)

    def run(self, command_id):
        give_up = time.monotonic() + 5
        # Without a server at its start, `run` ends at once.
        while self.follow(command_id) == UNREACHABLE and self.alive is None and time.monotonic() < give_up:
            time.sleep(0.1)
            self.start()
        status = self.process.returncode
        if status == DONE:
            say(id=command_id, done=True)
        elif self.alive is None:
            self.errors.seek(0)
            refused = "not_permitted" if "use a token" in self.errors.read() else "misuse"
            failures = {75: "timed_out" if self.waits else "busy", UNREACHABLE: "unreachable", -signal.SIGTERM: "canceled"}
            say(id=command_id, failure=failures.get(status, refused))

    def follow(self, command_id):
        for line in self.process.stdout:
            event, *words = line.split()
            if event == "held":
                pid, fence, *slots = words
                slots = [[int(slot) for slot in of.split(",") if slot] for of in "".join(slots).split(":")]
                self.alive = os.pidfd_open(int(pid))
                say(id=command_id, **self.belief(), fence=fence, slots=slots)
                threading.Thread(target=self.mourn, daemon=True).start()
            elif event == "revoking":
                say(event="revoking", permit=self.permit, grace_ms=int(words[0]))
        return self.process.wait()

    def mourn(self):
        select.select([self.alive], [], [])
        if not self.released:
            say(event="lost", permit=self.permit, reason="the command was ended")

    def belief(self):
        is_dead = self.alive is None or self.released or select.select([self.alive], [], [], 0)[0]
        return {"held": False} if is_dead else {"held": True, "left_ms": 0}

    def release(self, done):
        self.released = True
        with contextlib.suppress(OSError, ValueError):  # It has ended, or was released before.
            if done:
                self.process.stdin.write("done\n")
            self.process.stdin.close()
        self.process.wait(timeout=12)


def obey(command):
    do, command_id, run = command["do"], command["id"], permits.get(command.get("permit"))
    if do == "acquire":
        permits[command["permit"]] = Run(command)
        return
    if do == "exit":
        sys.exit()
    if do == "check":
        time.sleep(command.get("block_ms", 0) / 1000)
        return say(id=command_id, **run.belief())
    if do == "release":
        run.release(command.get("done", False))
    elif do == "cancel":
        run.process.terminate()
    say(id=command_id)


say(driver="run", capabilities=["cancel", "push", "renew", "share", "supervises", "tls", "token"])
for line in sys.stdin:
    obey(json.loads(line))
