"""Evaluates Python expressions, one a line, and answers each with one line: its value, or the exception."""

import os
import signal
import sys

import sysv_ipc

names = {"sysv_ipc": sysv_ipc, "os": os, "signal": signal}
print("ready", flush=True)
for line in sys.stdin:
    try:
        answer = repr(eval(line.strip(), names))
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(answer, flush=True)
