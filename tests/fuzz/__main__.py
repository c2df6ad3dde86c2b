"""`make fuzz MINUTES=60`: inputs of every kind, in a process of its own that may crash, hang or grow.

Every input has a seed, so that `python -m tests.fuzz --minutes 0 --only KIND:SEED` makes it again. What is
found is printed and appended to FILE, one JSON object a line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import IO, Any

SILENT_S = 60
"""A process that says nothing for so long hangs below Python, where its own alarm does not reach."""
RESTART_EACH = 2_000
MOST_RSS_MB = 2_000
"""Of the process, after any input: all are smaller than a megabyte, and a start takes 300."""
ADDRESS_SPACE = 24 << 30


def work(first: int, kinds: list[str], only: list[str]) -> None:
    """Make inputs and say of each what it came to, a JSON object a line, until somebody ends this process."""
    said = os.fdopen(os.dup(1), "w", encoding="utf-8", closefd=False)
    os.dup2(2, 1)
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["PERFDOC_STATE"] = tempfile.mkdtemp(prefix="perfdoc-fuzz-state-")
    from tests.fuzz.kinds import KINDS, run

    names = kinds or list(KINDS)
    inputs = [(k, int(s)) for k, s in (o.rsplit(":", 1) for o in only)]
    inputs = inputs or [(k, s) for s in range(first, first + RESTART_EACH) for k in names]
    with tempfile.TemporaryDirectory(prefix="perfdoc-fuzz-") as place:
        scratch, bases = Path(place) / "scratch", Path(place) / "bases"
        scratch.mkdir()
        bases.mkdir()
        run("kineto-rows", 0, scratch, bases, limit_s=300)  # compiles what is compiled once
        for kind, seed in inputs:
            line: dict[str, Any] = {"kind": kind, "seed": seed}
            said.write(json.dumps({**line, "begins": True}) + "\n")
            said.flush()
            begin = time.monotonic()
            try:
                line["ended"] = run(kind, seed, scratch, bases)
            except Exception as error:  # noqa: BLE001 - whatever it is was found
                line["found"] = f"{type(error).__name__}: {error}"[:2_000]
                line["where"] = traceback.format_exc()[-3_000:]
            line["s"] = round(time.monotonic() - begin, 2)
            line["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            if line["rss_mb"] > MOST_RSS_MB and "found" not in line:
                line["found"] = f"grew to {line['rss_mb']} MB"
            said.write(json.dumps(line) + "\n")
            said.flush()
            if line["rss_mb"] > MOST_RSS_MB:
                return


class Watch:
    """Workers, one after the other, and what they said."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.count: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.found = 0
        self.slowest = (0.0, "")

    def run(self, arguments: list[str], until: float) -> None:
        """One worker, until it ends, is silent or the time is up."""
        command = [sys.executable, "-m", "tests.fuzz", "--worker", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            try:
                last, why = self._listen(worker.stdout, until)
            except KeyboardInterrupt:
                worker.kill()
                raise
            if why != "ended":
                worker.kill()
            code = worker.wait()
            if why.startswith("says") or (why == "ended" and code != 0):
                self._tell({**last, "found": f"the process {why} (code {code})"})

    def _listen(self, pipe: IO[bytes], until: float) -> tuple[dict[str, Any], str]:
        """The worker's last line, and why it was the last."""
        last: dict[str, Any] = {}
        rest = b""
        while True:
            left = until - time.monotonic()
            ready, _, _ = select.select([pipe], [], [], min(SILENT_S, max(left, 0)))
            if left <= 0:
                return last, "time is up"
            if not ready and left > SILENT_S:
                return last, f"says nothing for {SILENT_S} s"
            if ready and not (piece := os.read(pipe.fileno(), 1 << 16)):
                return last, "ended"
            if ready:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    last = json.loads(line)
                    self._take(last)

    def _take(self, line: dict[str, Any]) -> None:
        if "begins" in line:
            return
        self.count[line["kind"]] += 1
        self.ended[line["kind"] + ": " + line.get("ended", "FOUND")] += 1
        self.slowest = max(self.slowest, (line["s"], f"{line['kind']}:{line['seed']}"))
        if "found" in line:
            self._tell(line)

    def _tell(self, line: dict[str, Any]) -> None:
        self.found += 1
        sys.stdout.write(f"{line.get('kind')}:{line.get('seed')}: {str(line['found'])[:400]}\n")
        sys.stdout.flush()
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def main() -> int:
    """Exit code 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kinds", nargs="*", default=[])
    parser.add_argument("--only", nargs="*", default=[], metavar="KIND:SEED")
    parser.add_argument("--file", type=Path, help="where to write what is found")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.first, given.kinds, given.only)
        return 0
    watch, begin = Watch(given.file), time.monotonic()
    if given.only:
        watch.run(["--only", *given.only], begin + 600)
    first, until = given.first, begin + 60 * given.minutes
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):  # what was done until then is told
        while time.monotonic() < until and not given.only:
            watch.run(["--first", str(first), "--kinds", *given.kinds], until)
            first += RESTART_EACH
    minutes, used = (time.monotonic() - begin) / 60, resource.getrusage(resource.RUSAGE_CHILDREN)
    sys.stdout.write(f"{sum(watch.count.values()):,} inputs in {minutes:.1f} minutes ")
    sys.stdout.write(f"({(used.ru_utime + used.ru_stime) / 60:.1f} of CPU), {watch.found} found; ")
    sys.stdout.write(f"the slowest, {watch.slowest[1]}, took {watch.slowest[0]} s\n")
    for kind, count in sorted(watch.count.items()):
        ends = {k.split(": ", 1)[1]: n for k, n in watch.ended.most_common() if k.startswith(f"{kind}: ")}
        sys.stdout.write(
            f"  {kind}: {count:,} ({', '.join(f'{n:,} {k}' for k, n in list(ends.items())[:5])})\n"
        )
    return 1 if watch.found else 0


if __name__ == "__main__":
    sys.exit(main())
