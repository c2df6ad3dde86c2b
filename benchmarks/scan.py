"""The yardstick: one SQLite scan that totals every column that perfdoc reads from the large tables.

    python benchmarks/scan.py FILE.sqlite

Standard library only, so that the fresh process costs next to nothing. total() and not sum(), which
overflows on 64-bit ids; the length of a text costs SQLite what reading the text costs.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping, Sequence

_ACTIVITY = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId")
COLUMNS: Mapping[str, Sequence[str]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *_ACTIVITY,
        *("shortName", "demangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        *_ACTIVITY,
        "bytes",
        "copyKind",
        "srcKind",
        "dstKind",
        "srcDeviceId",
        "dstDeviceId",
        "migrationCause",
    ),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid", "domainId", "jsonText"),
}
"""analyze.py checks that perfdoc reads these columns and no others."""
TEXTS = frozenset({"text", "jsonText"})


def totals_sql(table: str) -> str:
    """One query over one table; the names are the constants above."""
    terms = (f'total(length("{c}"))' if c in TEXTS else f'total("{c}")' for c in COLUMNS[table])
    return f'SELECT count(*), {", ".join(terms)} FROM "{table}"'


def main() -> None:
    connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro&immutable=1", uri=True)
    for table in COLUMNS:
        print(table, *connection.execute(totals_sql(table)).fetchone())


if __name__ == "__main__":
    main()
