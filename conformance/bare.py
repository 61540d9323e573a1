"""A driver without a client library: the rules of docs/http.md, "A correct client", in one file.

It has one thread for each lease and one connection for each request, and no token. `python3 conformance/bare.py`
"""

import json
import os
import random
import secrets
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

URLS = os.environ["SIGNALBOX_URL"].split(",")
FAILURES = {"busy": "busy", "paused": "busy", "timed_out": "timed_out", "queue_full": "queue_full",
            "canceled": "lost", "revoked": "lost", "removed": "lost", "not_permitted": "not_permitted"}
permits = {}


def say(**message):
    # One write, since several threads say something.
    os.write(1, (json.dumps(message) + "\n").encode())


def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def post(path, body, seconds):
    """The status and the answer of one request; raises OSError without one."""
    request = urllib.request.Request(f"{URLS[0]}/api/v1/lease/{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        URLS.append(URLS.pop(0))
        raise


class Lease:
    def __init__(self, command):
        self.permit, self.ttl_ms = command["permit"], command["ttl_ms"]
        self.request = {field: command[field] for field in ("claims", "ttl_ms", "wait_ms")}
        self.request["share"] = command.get("share", False)
        self.request["key"] = secrets.token_hex(16)
        self.poll_ms = self.ttl_ms // 4
        self.end, self.released = 0.0, threading.Event()

    def left_ms(self):
        return 0 if self.released.is_set() else int((self.end - now()) * 1000)

    def belief(self):
        return {"held": True, "left_ms": self.left_ms()} if self.left_ms() > 0 else {"held": False}

    def run(self, command_id):
        ended = self.acquire(command_id)
        if ended:
            self.release()
            return say(id=command_id, **ended)
        reason = self.renew()
        if not self.released.is_set():
            self.end = min(self.end, now())
            say(event="lost", permit=self.permit, reason=reason)

    def acquire(self, command_id):
        give_up = now() + 10 + self.request["wait_ms"] / 1000
        while not self.released.is_set():
            sent, code = now(), None
            try:
                request = {**self.request, "poll_ms": self.poll_ms}
                status, answer = post("acquire", request, self.poll_ms / 1000 + 2)
            except (OSError, ValueError):
                status, answer = 503, {}
            if status == 202:
                if "place" in answer:
                    self.request["place"] = answer["place"]
            elif status == 200 and answer["state"] == "done":
                return {"done": True}
            elif status == 200:
                self.end = sent + answer["valid_ms"] / 1000
                if self.released.is_set():
                    break
                if self.left_ms() > 0:
                    say(id=command_id, **self.belief(), fence=answer["grant"], slots=answer["slots"])
                    return None
            elif status >= 500 or status == 408:
                code = answer.get("error", {}).get("code")
                time.sleep(random.uniform(0.05, 0.3))
            else:
                return {"failure": FAILURES.get(answer["error"]["code"], "misuse")}
            if now() > give_up:
                return {"failure": "busy" if code == "limit_reached" else "unreachable"}
        return {"failure": "canceled"}

    def renew(self):
        poll_ms = self.poll_ms
        while self.left_ms() > 0:
            sent = now()
            try:
                status, answer = post("renew", {"keys": [self.request["key"]], "poll_ms": poll_ms},
                                      (poll_ms + min(2000, self.ttl_ms // 4)) / 1000)
            except (OSError, ValueError):
                status, answer = 503, {}
            poll_ms = self.poll_ms if status == 200 else 0
            if status != 200:
                self.released.wait(random.uniform(0.02, 0.1))
                continue
            lease = answer["leases"][0]
            if lease["state"] == "held":
                self.end = max(self.end, sent + lease["valid_ms"] / 1000)
            elif lease["state"] == "lost":
                return lease.get("reason", "unknown")
            elif lease["state"] == "revoking":
                self.end = sent + lease["valid_ms"] / 1000
                say(event="revoking", permit=self.permit, grace_ms=lease["grace_ms"])
                self.released.wait(max(0, self.end - now()))
                return "revoked"
            else:
                self.released.wait(max(0, self.end - now()))
        return "expired"

    def release(self, done=False):
        self.released.set()
        end = now() + 5
        while now() < end:
            try:
                if post("release", {"key": self.request["key"], "done": done}, 1)[0] == 200:
                    return
            except (OSError, ValueError):
                pass
            time.sleep(random.uniform(0.05, 0.2))


def obey(command):
    do, command_id, lease = command["do"], command["id"], permits.get(command.get("permit"))
    if do == "acquire":
        permits[command["permit"]] = lease = Lease(command)
        return threading.Thread(target=lease.run, args=[command_id], daemon=True).start()
    if do == "exit":
        sys.exit()
    if do == "check":
        time.sleep(command.get("block_ms", 0) / 1000)
        if command.get("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        return say(id=command_id, **lease.belief())
    if do == "release":
        lease.release(command.get("done", False))
    elif do == "cancel" and not lease.end:
        lease.released.set()
    say(id=command_id)


say(driver="bare", capabilities=["cancel", "push", "renew", "share"])
for line in sys.stdin:
    obey(json.loads(line))
