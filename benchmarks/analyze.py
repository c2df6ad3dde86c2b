"""Times `perfdoc analyze` against one SQLite scan that totals the same columns (`make bench`).

    python benchmarks/analyze.py [--large] [--readers] [--devices 1]

Rounds of three, each in a fresh process: the scan, the analysis alone (`--no-replay`), and the whole command,
which also runs each window again. Ratios are taken round by round, so a machine that is busy for a while
slows all. The page cache is warm: dropping it needs root; so is the bytecode, as an installed perfdoc has it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from process import Run, timed

# Standard library only in this process: a child's peak memory counts that of the process that forked it.
HERE = Path(__file__).resolve().parent
ROUNDS = {200_000: 9, 2_000_000: 7, 20_000_000: 3}
JUDGED = 2_000_000
DEVICES = 8
MAX_RATIO = {DEVICES: {"analysis": 3.0, "with replay": 6.0}, 1: {"analysis": 4.0, "with replay": 4.0}}
"""By devices of the file."""
MAX_PEAK_MB = 1500.0


@dataclass(frozen=True, kw_only=True)
class Series:
    """All runs of one command on one file, and the scans that they took turns with."""

    scans: Sequence[Run]
    runs: Sequence[Run]

    @property
    def ratios(self) -> list[float]:
        return [b.wall_s / a.wall_s for a, b in zip(self.scans, self.runs, strict=True)]

    @property
    def cpu_ratio(self) -> float:
        return statistics.median(b.cpu_s / a.cpu_s for a, b in zip(self.scans, self.runs, strict=True))

    @property
    def seconds(self) -> float:
        return statistics.median(r.wall_s for r in self.runs)

    @property
    def cpu_s(self) -> float:
        return statistics.median(r.cpu_s for r in self.runs)

    @property
    def peak_mb(self) -> float:
        """The worst run, since the bar is one that no run may pass."""
        return max(r.peak_mb for r in self.runs)


@dataclass(frozen=True, kw_only=True)
class Size:
    """All rounds of one file."""

    kernels: int
    devices: int
    series: Mapping[str, Series]
    """By the names of MAX_RATIO."""


def scan(path: Path) -> Run:
    return timed([sys.executable, str(HERE / "scan.py"), str(path)])


def analyse(path: Path, caches: Path, *options: str) -> Run:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(caches)
    with tempfile.TemporaryDirectory(prefix="perfdoc-bench-") as folder:
        # The whole command: start, imports, reading, analysis, SHA-256, HTML, Markdown and JSON.
        command = [sys.executable, "-m", "perfdoc", "analyze", str(path), "-o", f"{folder}/report", *options]
        return timed(command, environment)


def trace_file(kernels: int, devices: int, folder: Path) -> Path:
    command = [sys.executable, str(HERE / "generate.py"), f"--kernels={kernels}", f"--folder={folder}"]
    command.append(f"--devices={devices}")
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Path(output.splitlines()[-1])


def measure(path: Path, kernels: int, devices: int, rounds: int) -> Size:
    scans: list[Run] = []
    alone: list[Run] = []
    replayed: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="perfdoc-bench-") as folder:
        for _ in range(rounds + 1):
            scans.append(scan(path))
            alone.append(analyse(path, Path(folder), "--no-replay"))
            replayed.append(analyse(path, Path(folder)))
    # The first round fills the page cache and the caches of compiled code.
    return Size(
        kernels=kernels,
        devices=devices,
        series={
            name: Series(scans=scans[1:], runs=runs[1:])
            for name, runs in zip(MAX_RATIO[devices], (alone, replayed), strict=True)
        },
    )


def show(size: Size) -> bool:
    """Print the figures and, for the size that has them, the bars. False where one is missed."""
    scans = next(iter(size.series.values())).scans
    print(
        f"{size.kernels:>11,} kernels of {size.devices}  {len(scans)} rounds  "
        f"scan {statistics.median(r.wall_s for r in scans):7.2f} s",
        flush=True,
    )
    passed = True
    for name, series in size.series.items():
        ratio = statistics.median(series.ratios)
        print(
            f"{'':11} {name:<12} {series.seconds:7.2f} s  "
            f"ratio {ratio:5.2f} ({min(series.ratios):.2f} to {max(series.ratios):.2f})  "
            f"CPU ratio {series.cpu_ratio:5.2f}  peak {series.peak_mb:6.0f} MB",
            flush=True,
        )
        if size.kernels != JUDGED:
            continue
        fits = {
            f"ratio {ratio:.2f} <= {MAX_RATIO[size.devices][name]}": ratio <= MAX_RATIO[size.devices][name],
            f"peak {series.peak_mb:.0f} MB <= {MAX_PEAK_MB:.0f} MB": series.peak_mb <= MAX_PEAK_MB,
        }
        for text, fit in fits.items():
            print(f"{'':24} {'PASS' if fit else 'MISS'}  {text}")
        passed = passed and all(fits.values())
    return passed


def show_growth(small: Size, large: Size) -> None:
    for name, before in small.series.items():
        after = large.series[name]
        print(
            f"growth {small.kernels:,} to {large.kernels:,} kernels ({large.kernels / small.kernels:.0f} x), "
            f"{name}: time {after.seconds / before.seconds:.1f} x, "
            f"CPU time {after.cpu_s / before.cpu_s:.1f} x, memory {after.peak_mb / before.peak_mb:.1f} x"
        )


def show_phases(path: Path) -> None:
    output = subprocess.run(
        [sys.executable, str(HERE / "phases.py"), str(path)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    phases: dict[str, list[float]] = json.loads(output)
    print(f"phases of one run on {path.name} (ms of wall time; MB peak so far; indented: part of the above)")
    for label, (ms, mb) in phases.items():
        print(f"  {label:<36} {ms:8.0f} {mb:8.0f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="also 20 M kernels (a file of 3 GB)")
    parser.add_argument("--readers", action="store_true", help="also compare ways to read the tables")
    parser.add_argument("--rounds", type=int, help="rounds per size")
    parser.add_argument("--folder", type=Path, default=HERE / "data", help="where the traces are kept")
    parser.add_argument(
        "--devices", type=int, default=DEVICES, choices=MAX_RATIO, help="that ran the kernels"
    )
    options = parser.parse_args()
    sizes = []
    passed = True
    for kernels, rounds in ROUNDS.items():
        if kernels <= JUDGED or options.large:
            path = trace_file(kernels, options.devices, options.folder)
            sizes.append(measure(path, kernels, options.devices, options.rounds or rounds))
            passed = show(sizes[-1]) and passed
    for small, large in itertools.pairwise(sizes):
        show_growth(small, large)
    judged = trace_file(JUDGED, options.devices, options.folder)
    show_phases(judged)
    if options.readers:
        subprocess.run([sys.executable, str(HERE / "readers.py"), str(judged)], check=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
