"""Client of signalbox: distributed semaphores, locks and leader election, held by leases.

```python
import signalbox

with signalbox.Client("http://127.0.0.1:11217").acquire("nightly-report", maximum=1) as permit:
    permit.check()
```

`signalbox.aio` has the same for asyncio.
"""

from ._client import Claim, Client, Permit
from ._errors import Busy, Lost, Misuse, NotPermitted, QueueFull, SignalboxError, TimedOut, Unreachable
from ._lease import Event

__version__ = "0.1.0"

__all__ = [
    "Busy",
    "Claim",
    "Client",
    "Event",
    "Lost",
    "Misuse",
    "NotPermitted",
    "Permit",
    "QueueFull",
    "SignalboxError",
    "TimedOut",
    "Unreachable",
]
