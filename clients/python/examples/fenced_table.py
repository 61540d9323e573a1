"""A table that refuses writes of earlier holders, also of one that was suspended after its last check.

SIGNALBOX_URL=http://127.0.0.1:11217 python3 fenced_table.py report.db
"""

import sqlite3
import sys

import signalbox


def write(table: sqlite3.Connection, fence: int, text: str) -> bool:
    """Whether the table has accepted the text."""
    with table:
        table.execute("INSERT OR IGNORE INTO report (id, fence, text) VALUES (1, 0, '')")
        written = table.execute("UPDATE report SET fence = ?1, text = ?2 WHERE id = 1 AND fence <= ?1", (fence, text))
    return written.rowcount == 1


if len(sys.argv) != 2:
    sys.exit("usage: fenced_table.py FILE")
table = sqlite3.connect(sys.argv[1])
table.execute("CREATE TABLE IF NOT EXISTS report (id INTEGER PRIMARY KEY, fence INTEGER NOT NULL, text TEXT)")
client = signalbox.Client()
with client.acquire("report", maximum=1) as earlier:
    pass
with client.acquire("report", maximum=1) as permit:
    print("the holder writes:", write(table, permit.fence, "new"))
    print("an earlier holder writes:", write(table, earlier.fence, "old"))
