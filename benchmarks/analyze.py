"""Times `perfdoc analyze` against one SQLite scan that totals the same columns (`make bench`).

    python benchmarks/analyze.py [--large] [--readers]

Pairs run interleaved, scan then analysis, each in a fresh process; the ratio is taken pair by pair, so a
machine that is busy for a while slows both halves. The page cache is warm: dropping it needs root.
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
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Standard library only in this process: a child's peak memory counts that of the process that forked it.
HERE = Path(__file__).resolve().parent
PAIRS = {200_000: 9, 2_000_000: 7, 20_000_000: 3}
JUDGED = 2_000_000
MAX_RATIO = 3.0
MAX_PEAK_MB = 1500.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one process cost."""

    wall_s: float
    cpu_s: float
    peak_mb: float


@dataclass(frozen=True, kw_only=True)
class Size:
    """All pairs of one file."""

    kernels: int
    scans: Sequence[Run]
    analyses: Sequence[Run]

    @property
    def ratios(self) -> list[float]:
        return [b.wall_s / a.wall_s for a, b in zip(self.scans, self.analyses, strict=True)]

    @property
    def cpu_ratio(self) -> float:
        pairs = zip(self.scans, self.analyses, strict=True)
        return statistics.median(b.cpu_s / a.cpu_s for a, b in pairs)

    @property
    def seconds(self) -> float:
        return statistics.median(r.wall_s for r in self.analyses)

    @property
    def cpu_s(self) -> float:
        return statistics.median(r.cpu_s for r in self.analyses)

    @property
    def peak_mb(self) -> float:
        """The worst run, since the bar is one that no run may pass."""
        return max(r.peak_mb for r in self.analyses)


def timed(command: Sequence[str]) -> Run:
    """Run a command to its end. Raises CalledProcessError with its messages where it fails."""
    with tempfile.TemporaryFile() as messages:
        begin = time.perf_counter()
        # wait4 gives the peak of this child alone; RUSAGE_CHILDREN would give the largest child so far.
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            messages.seek(0)
            text = messages.read().decode("utf-8", "replace")
            raise subprocess.CalledProcessError(child.returncode, command, stderr=text)
    to_mb = 1e6 if sys.platform == "darwin" else 1e3
    return Run(wall_s=wall_s, cpu_s=usage.ru_utime + usage.ru_stime, peak_mb=usage.ru_maxrss / to_mb)


def scan(path: Path) -> Run:
    return timed([sys.executable, str(HERE / "scan.py"), str(path)])


def analyse(path: Path) -> Run:
    with tempfile.TemporaryDirectory(prefix="perfdoc-bench-") as folder:
        # The whole command: start, imports, reading, analysis, SHA-256, HTML, Markdown and JSON.
        return timed([sys.executable, "-m", "perfdoc", "analyze", str(path), "-o", f"{folder}/report"])


def trace_file(kernels: int, folder: Path) -> Path:
    command = [sys.executable, str(HERE / "generate.py"), f"--kernels={kernels}", f"--folder={folder}"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Path(output.splitlines()[-1])


def measure(path: Path, kernels: int, pairs: int) -> Size:
    scan(path), analyse(path)  # fills the page cache and Python's bytecode cache
    scans, analyses = [], []
    for _ in range(pairs):
        scans.append(scan(path))
        analyses.append(analyse(path))
    return Size(kernels=kernels, scans=scans, analyses=analyses)


def show(size: Size) -> bool:
    """Print one line of figures and, for the size that has one, the bar. False where it is missed."""
    ratio = statistics.median(size.ratios)
    print(
        f"{size.kernels:>11,} kernels  {len(size.ratios)} pairs  "
        f"scan {statistics.median(r.wall_s for r in size.scans):7.2f} s  analyse {size.seconds:7.2f} s  "
        f"ratio {ratio:5.2f} ({min(size.ratios):.2f} to {max(size.ratios):.2f})  "
        f"CPU ratio {size.cpu_ratio:5.2f}  peak {size.peak_mb:6.0f} MB",
        flush=True,
    )
    if size.kernels != JUDGED:
        return True
    fits = {
        f"ratio {ratio:.2f} <= {MAX_RATIO}": ratio <= MAX_RATIO,
        f"peak {size.peak_mb:.0f} MB <= {MAX_PEAK_MB:.0f} MB": size.peak_mb <= MAX_PEAK_MB,
    }
    for text, fit in fits.items():
        print(f"{'':11} {'PASS' if fit else 'MISS'}  {text}")
    return all(fits.values())


def show_growth(small: Size, large: Size) -> None:
    print(
        f"growth {small.kernels:,} to {large.kernels:,} kernels ({large.kernels / small.kernels:.0f} x): "
        f"time {large.seconds / small.seconds:.1f} x, CPU time {large.cpu_s / small.cpu_s:.1f} x, "
        f"memory {large.peak_mb / small.peak_mb:.1f} x"
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
    parser.add_argument("--pairs", type=int, help="pairs per size")
    parser.add_argument("--folder", type=Path, default=HERE / "data", help="where the traces are kept")
    options = parser.parse_args()
    sizes = []
    passed = True
    for kernels, pairs in PAIRS.items():
        if kernels <= JUDGED or options.large:
            path = trace_file(kernels, options.folder)
            sizes.append(measure(path, kernels, options.pairs or pairs))
            passed = show(sizes[-1]) and passed
    for small, large in itertools.pairwise(sizes):
        show_growth(small, large)
    judged = trace_file(JUDGED, options.folder)
    show_phases(judged)
    if options.readers:
        subprocess.run([sys.executable, str(HERE / "readers.py"), str(judged)], check=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
