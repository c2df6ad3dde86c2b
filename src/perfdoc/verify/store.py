"""Where records are kept, so that a rule's track record can be told."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfdoc.output import write_all
from perfdoc.traces import TraceError
from perfdoc.verify.record import Record, encode, read_record

RECORD_NAME = "verify.json"
"""What it is called in the folder of -o."""
MAX_RECORDS = 5_000
"""Of one folder; the newest by name count."""


def state_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """The user's own folder of records: `$PERFDOC_STATE/verify`, else the one of the desktop's convention
    (`$XDG_STATE_HOME/perfdoc/verify`, by default below ~/.local/state). None without a home."""
    given = os.environ if environment is None else environment
    if own := given.get("PERFDOC_STATE"):
        return Path(own) / "verify"
    state = Path(given.get("XDG_STATE_HOME") or "")
    if not state.is_absolute():  # as the convention wants it
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:
            return None
    return state / "perfdoc" / "verify"


def keep(record: Record, folder: Path) -> Path:
    """Write a record among the others; one of the same content is written once. Raises OSError."""
    content = encode(record)
    digest = hashlib.sha256(content).hexdigest()[:8]
    when = "".join(c for c in record.utc if c.isalnum())
    codes = "-".join("".join(c for c in code[:20] if c.isalnum()) for code in record.codes[:4])
    path = folder / f"{when[:20]}-{codes}-{digest}.json"  # codes may be those of a file that anybody wrote
    write_all({path: content}, folder)
    return path


def records_in(folder: Path) -> list[Record]:
    """The records of a folder and those below it, oldest first; other files are passed over."""
    found = []
    for path in sorted(folder.glob("**/*.json"))[-MAX_RECORDS:]:
        try:
            found.append(read_record(path))
        except TraceError:
            continue
    return sorted(found, key=lambda r: r.utc)


def given_records(folder: Path) -> list[Record]:
    """The records of a folder that a user named. Raises TraceError where it holds none."""
    if not (found := records_in(folder)):
        raise TraceError(folder, "holds no record of perfdoc verify.", "Give a folder of its -o.")
    return found


def of_rule(records: Sequence[Record], code: str) -> list[Record]:
    """Those that tell of one rule, each once."""
    seen: dict[bytes, Record] = {}
    for record in records:
        if code.upper() in record.codes and record.complete:
            seen.setdefault(encode(record), record)
    return list(seen.values())
