"""Bytes of a rank's summary, by kernels and steps: for an analysis of it alone, and of many ranks.

    python benchmarks/summaries.py [--kernels 10000 100000 1000000] [--steps 1 32] [--parts]

One device a file, laid as benchmarks/generate.py lays it; the summary is written as `perfdoc summarize` does.
"""

from __future__ import annotations

import argparse
import dataclasses
import pickle
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from generate import generated

from perfdoc.diagnose.asked import parse_request
from perfdoc.summaries.codec import decode, encode
from perfdoc.summaries.content import Kept, Measured
from perfdoc.summaries.reading import measure_or_explain
from perfdoc.summaries.writing import summarize
from perfdoc.traces.summary_file import _packed, read_sections

MANY = 16_384
_SHOWN = 8


def trace_of(kernels: int, steps: int, folder: Path) -> Path:
    """One device with so many kernels in so many steps."""
    return generated(kernels, folder, devices=1, step_kernels=kernels // steps)


def parts(summary: Path) -> list[tuple[int, str]]:
    """Packed bytes of each part by itself, largest first."""
    _, (first, second) = read_sections(summary, [0, 1])
    measured, kept = decode(first, Measured), decode(second, Kept)
    assert measured.capture is not None
    found = [(_bytes(value), f"rank.{name}") for name, value in _fields(measured.capture.ranks[0])]
    found += [(_bytes(value), f"above.{name}") for name, value in _fields(measured.above[0])]
    if (tasks := kept.tasks[0]) is not None:
        found += [(_bytes(value), f"kept.{name}") for name, value in _fields(tasks.rebuilt)]
        found += [(_bytes(value), f"kept.graph.{name}") for name, value in _fields(tasks.rebuilt.graph)]
        found.append((_bytes(tasks.bounds), "kept.bounds"))
    return sorted(found, reverse=True)


def _fields(value: Any) -> list[tuple[str, Any]]:
    return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]


def _bytes(value: Any) -> int:
    return len(_packed(encode(value)))


def main() -> int:
    """A row a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kernels", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--parts", action="store_true", help="what the bytes of each are")
    asked = parser.parse_args()
    head = ("kernels", "steps", "trace MB", "kept KB", "many KB", "unpacked KB", "write s", "read ms")
    sys.stdout.write(" | ".join(head) + "\n")
    for kernels in asked.kernels:
        for steps in asked.steps:
            with tempfile.TemporaryDirectory() as folder:
                path = trace_of(kernels, steps, Path(folder))
                row(path, kernels, steps, with_parts=asked.parts)
    return 0


def row(path: Path, kernels: int, steps: int, *, with_parts: bool) -> None:
    """Print what one trace gives."""
    request = parse_request([str(path)], jobs=1)
    begin = time.process_time()
    whole = summarize(path, request, ranks=1)
    took = time.process_time() - begin
    found = parts(whole.path) if with_parts else []
    shown = found[:_SHOWN] + [f for f in found if not f[1].startswith("kept")][:_SHOWN]
    many = summarize(path, request, ranks=MANY)
    begin = time.process_time()
    measured = measure_or_explain(many.path, request)
    read_ms = (time.process_time() - begin) * 1e3
    sizes = (whole.bytes, many.bytes, len(pickle.dumps(measured)))
    cells = (
        f"{kernels:,}",
        f"{steps}",
        f"{path.stat().st_size / 1e6:,.1f}",
        *(f"{size / 1e3:,.0f}" for size in sizes),
        f"{took:.1f}",
        f"{read_ms:.0f}",
    )
    sys.stdout.write(" | ".join(cells) + "\n")
    for size, name in shown:
        sys.stdout.write(f"    {size:>12,}  {name}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
