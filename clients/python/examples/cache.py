"""Of many processes that need the same page at once, one renders it, and the others wait for it. The cache is a file.

SIGNALBOX_URL=http://127.0.0.1:11217 python3 cache.py page.html
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Optional

import signalbox

if len(sys.argv) != 2:
    sys.exit("usage: cache.py FILE")
file = Path(sys.argv[1])


def find() -> Optional[str]:
    return file.read_text() if file.exists() else None


def render(permit: signalbox.Permit) -> str:
    page = f"rendered by process {os.getpid()}"
    whole = file.with_suffix(f".{permit.fence}")
    whole.write_text(page)
    whole.rename(file)  # At once, so that no process finds half of it.
    return page


print(signalbox.Client().share("page/42", find, render, wait=timedelta(seconds=10)))
