"""A job that cron starts on all machines, and that runs on one of them.

SIGNALBOX_URL=http://127.0.0.1:11217 python3 cron_job.py
"""

import signalbox

client = signalbox.Client(label="nightly report")


@client.limit("nightly-report", maximum=1, on_busy="skip")
def report() -> str:
    return "the report is written"


print(report() or "another machine writes the report")
