"""What the cache of traces gains: `perfdoc analyze` without it, filling it, and from it.

    python benchmarks/cache.py FILE [FILE …] [--rounds 3] [--replay]

Rounds of three, each in a fresh process on an empty cache: `--no-cache`, the first run, the second. Of each
the least processor time and the least wall time over the rounds: other work on the machine only adds to them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from process import Run, timed

NAMES = ("without", "first", "second")


def analysed(file: Path, cache: Path, output: Path, *options: str) -> Run:
    environment = os.environ | {"PERFDOC_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "perfdoc", "analyze", str(file), "-o", str(output), *options]
    return timed(command, environment)


def measure(file: Path, rounds: int, options: list[str]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="perfdoc-bench-") as folder:
            for name in NAMES:
                more = ["--no-cache"] if name == "without" else []
                found[name].append(
                    analysed(file, Path(folder) / "cache", Path(folder) / name, *options, *more)
                )
            kept = sum(p.stat().st_size for p in Path(folder).glob("cache/traces/*"))
    print(f"{file.name}: {file.stat().st_size / 1e6:,.1f} MB, kept {kept / 1e6:,.1f} MB, {rounds} rounds")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replay", action="store_true", help="with the replay")
    options = parser.parse_args()
    for file in options.files:
        runs = measure(file, options.rounds, [] if options.replay else ["--no-replay"])
        for name in NAMES:
            best = Run.best(runs[name])
            times = f"CPU {best.cpu_s:6.2f} s  wall {best.wall_s:6.2f} s"
            print(f"  {name:<8} {times}  peak {best.peak_mb:6.0f} MB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
