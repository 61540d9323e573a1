"""A process that leads until it is stopped or loses the leadership; the others wait for it.

SIGNALBOX_URL=http://127.0.0.1:11217 python3 leader.py [STEPS]
"""

import sys
import time
from datetime import timedelta

import signalbox

client = signalbox.Client()
steps = int(sys.argv[1]) if sys.argv[1:] else 1_000_000
while steps > 0:
    try:
        with client.acquire("leader", maximum=1, wait=timedelta(hours=1), ttl=timedelta(seconds=5)) as permit:
            print(f"this process leads with the fencing token {permit.fence}", flush=True)
            while steps > 0:
                permit.check()  # Before each step. It reads the clock, and asks no server.
                time.sleep(0.01)
                steps -= 1
    except signalbox.TimedOut:
        pass
    except signalbox.Lost as lost:
        print(f"this process no longer leads: {lost}", file=sys.stderr)
