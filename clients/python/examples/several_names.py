"""Two accounts at once, or neither: transfers in both directions cannot deadlock.

SIGNALBOX_URL=http://127.0.0.1:11217 python3 several_names.py blue red
"""

import sys
from datetime import timedelta

import signalbox

if len(sys.argv) < 2:
    sys.exit("usage: several_names.py NAME …")
accounts = [signalbox.Claim(f"account/{name}", maximum=1) for name in sys.argv[1:]]
with signalbox.Client().acquire(accounts, wait=timedelta(seconds=10)):
    print(f"the transfer between {' and '.join(sys.argv[1:])} is done")
