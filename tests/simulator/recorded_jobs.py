"""Published jobs of others, as they are and with less in their files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).resolve().parents[3] / "shared" / "traces" / "jobs"


def files_of(job: str) -> list[Path]:
    """One file a rank. Skips where the folder is missing."""
    found = sorted((JOBS / job).glob("*.gz"))
    if not found:
        pytest.skip(f"{JOBS / job} is missing")
    return found


def rewritten(files: Sequence[Path], folder: Path, change: Callable[[dict[str, Any]], None]) -> list[Path]:
    """Copies with each kernel's arguments changed."""
    made = []
    for file in files:
        content = json.loads(gzip.decompress(file.read_bytes()))
        for event in content["traceEvents"]:
            if event.get("cat") == "kernel":
                change(event["args"])
        made.append(folder / file.name)
        made[-1].write_bytes(gzip.compress(json.dumps(content).encode(), 1))
    return made
