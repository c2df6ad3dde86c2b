"""Reading PyTorch traces of hundreds of megabytes: perfdoc against `zcat | wc -c` and a plain `json.load`.

    python benchmarks/large_kineto.py make OUT.json.gz --like TRACE.json.gz --mb 300
    python benchmarks/large_kineto.py measure OUT.json.gz [--ways zcat perfdoc json] [--python PYTHON ...]

`make` repeats the events of a real trace until the file has so many megabytes (10^6 bytes, gzip level 1):
times, correlation and flow ids and step numbers advance, laid out as in the original, the same bytes each
time. `measure` runs each way in a process of its own, in turn, and prints the least wall and CPU
seconds and the largest peak. Several PYTHONs (say, of two checkouts) are compared on the same file.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import zlib
from pathlib import Path

from process import Run, timed

ROUNDS = 3
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_ADVANCING = re.compile(
    rb'(?P<ts>(?<="ts": )[0-9]+)|(?P<id>(?<="correlation": )[0-9]+|(?<="External id": )[0-9]+'
    rb'|(?<="id": )[0-9]+(?=, "pid"))|(?P<step>(?<=ProfilerStep#)[0-9]+)'
)

READ = "from pathlib import Path; import sys; from perfdoc.traces.kineto.read import read_kineto; "
WAYS = {
    "perfdoc": READ + "t = read_kineto(Path(sys.argv[1])); print(len(t.kernels), len(t.operators))",
    "json": "import gzip, json, sys; print(len(json.load(gzip.open(sys.argv[1]))['traceEvents']))",
}


def make(out: Path, like: Path, packed_bytes: int) -> None:
    """Write the trace; its times go on for as long as the original lasts, again and again."""
    text = gzip.decompress(like.read_bytes()) if like.suffix == ".gz" else like.read_bytes()
    key = _EVENTS.search(text)
    begin = key.end() if key else text.index(b"[") + 1
    end = text.rindex(b"}", begin, text.rindex(b"]")) + 1
    fixed, numbers, kinds, at = [], [], [], begin
    for match in _ADVANCING.finditer(text, begin, end):
        fixed.append(text[at : match.start()])
        numbers.append(int(match.group()))
        kinds.append(match.lastgroup)
        at = match.end()
    last = text[at:end]
    steps = {
        kind: max((n for n, k in zip(numbers, kinds, strict=True) if k == kind), default=0) + 1
        for kind in ("id", "step")
    }
    times = [n for n, kind in zip(numbers, kinds, strict=True) if kind == "ts" and n]
    steps["ts"] = max(times) - min(times) + 1_000
    advance = [
        steps[kind] if number or kind != "ts" else 0 for number, kind in zip(numbers, kinds, strict=True)
    ]
    packer, written, repeats = zlib.compressobj(1, wbits=31), 0, 0
    with out.open("wb") as file:
        file.write(packer.compress(text[:begin]))
        while written < packed_bytes:
            parts = [
                part
                for before, number, step in zip(fixed, numbers, advance, strict=True)
                for part in (before, b"%d" % (number + repeats * step))
            ]
            content = b"".join((b"," if repeats else b"", *parts, last))
            written += file.write(packer.compress(content))
            repeats += 1
        file.write(packer.compress(text[end:]) + packer.flush())
    print(f"{out}: {out.stat().st_size / 1e6:.0f} MB, {repeats} times {like.name} ({len(text) / 1e6:.1f} MB)")


def measure(path: Path, ways: list[str], pythons: list[str], rounds: int) -> None:
    """Print a line for each way."""
    commands: dict[str, list[str]] = {}
    for way in ways:
        if way == "zcat":
            commands["zcat | wc -c"] = ["/bin/sh", "-c", f"zcat '{path}' | wc -c"]
        else:
            for python in pythons:
                commands[f"{way} ({python})"] = [python, "-c", WAYS[way], str(path)]
    figures: dict[str, list[Run]] = {label: [] for label in commands}
    said = {}
    log = Path(f"{path}.said")
    for _ in range(rounds):
        for label, command in commands.items():
            figures[label].append(timed(command, printed=log))
            said[label] = log.read_text().strip()
    log.unlink()
    print(f"{path.name}: {path.stat().st_size / 1e6:.0f} MB")
    best = {label: Run.best(runs) for label, runs in figures.items()}
    scan = best.get("zcat | wc -c")
    for label, found in best.items():
        ratio = f", {found.wall_s / scan.wall_s:.2f} x zcat" if scan else ""
        print(f"  {label}: {found}{ratio} ({said[label]})")


def main() -> None:
    """Make or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    making = actions.add_parser("make")
    making.add_argument("out", type=Path)
    making.add_argument("--like", type=Path, required=True)
    making.add_argument("--mb", type=float, default=20)
    measuring = actions.add_parser("measure")
    measuring.add_argument("file", type=Path)
    measuring.add_argument("--ways", nargs="+", default=["zcat", "perfdoc"], choices=["zcat", *WAYS])
    measuring.add_argument("--python", nargs="+", default=[sys.executable])
    measuring.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    if given.action == "make":
        make(given.out, given.like, int(given.mb * 1e6))
    else:
        measure(given.file, given.ways, given.python, given.rounds)


if __name__ == "__main__":
    main()
