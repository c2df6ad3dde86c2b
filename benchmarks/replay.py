"""Times building the graph and one replay of every device of a file against one SQLite scan of it.

    python benchmarks/replay.py [--kernels 2000000] [--pairs 3]

Reading and sorting the capture is what `perfdoc analyze` does anyway and is not counted. Scan and replay are
interleaved and the ratio is taken pair by pair. The bar is twice that of the analysis (docs/performance.md).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_RATIO = 2 * 3.0


def main() -> int:
    """Print the figures; 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", type=int, default=2_000_000)
    parser.add_argument("--pairs", type=int, default=3)
    given = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from generate import generated

    from perfdoc.analyzers import measure
    from perfdoc.analyzers.device.view import DeviceView
    from perfdoc.analyzers.device.window import WindowRequest
    from perfdoc.simulator.engine import schedule
    from perfdoc.simulator.replay.rebuilt import rebuild_rank
    from perfdoc.simulator.replay.unedited import replay

    path = generated(given.kernels)
    views: list[DeviceView] = []
    analysed = measure.measure_device

    def kept(view: DeviceView, also: object = None) -> object:
        views.append(view)
        return analysed(view)

    measure.measure_device = kept  # type: ignore[assignment]
    try:
        measure.measure_capture(path, WindowRequest())
    finally:
        measure.measure_device = analysed
    schedule(rebuild_rank(views[0]).graph)  # compiles
    ratios = []
    for _ in range(given.pairs):
        begin = time.perf_counter()
        subprocess.run([sys.executable, HERE / "scan.py", path], check=True, stdout=subprocess.DEVNULL)
        scan_s = time.perf_counter() - begin
        build_s = run_s = 0.0
        tasks = 0
        for view in views:
            begin = time.perf_counter()
            rebuilt = rebuild_rank(view)
            built = time.perf_counter()
            found = replay(rebuilt)
            build_s, run_s = build_s + built - begin, run_s + time.perf_counter() - built
            tasks += found.tasks
        ratios.append((build_s + run_s) / scan_s)
        print(
            f"{tasks:,} tasks of {len(views)} devices: scan {scan_s:.2f} s, build {build_s:.2f} s, replay "
            f"{run_s:.2f} s, ratio {ratios[-1]:.2f}"
        )
    ratio = statistics.median(ratios)
    print(f"median ratio {ratio:.2f}, bar {MAX_RATIO:.1f}")
    return int(ratio > MAX_RATIO)


if __name__ == "__main__":
    raise SystemExit(main())
