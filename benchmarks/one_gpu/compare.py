"""Predicted against measured, at home: `python benchmarks/one_gpu/compare.py OUT`.

OUT is what came back. `perfdoc analyze` and `perfdoc tune` predict every change from the run without it,
which knows nothing of the others; measured are the clean steps of both. Gains are shares of the step, because
what is predicted of profiled steps is held against steps without a profiler.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from bundles import unpack  # noqa: E402
from runs import RUNS  # noqa: E402

NOISE = ("base", "again")
"""Two runs alike."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The gain of some settings, as shares of the step."""

    settings: frozenset[str]
    low: float | None
    mid: float | None
    high: float | None
    by: str


def predictions(run: Path) -> tuple[list[Predicted], str]:
    """What is said of a run, by the search of configurations, then by the rules; and why the search is
    silent, empty where it is not."""
    document, last_line = _said(["tune", str(run), "--json", "-"])
    return [*_tuned(document), *_advised(run)], "" if document else last_line


def _tuned(document: Any) -> Iterator[Predicted]:
    for row in document.get("rows", ()):
        gain, step_ms = row["gain_ms"], document["step_ms"]
        if row["changes"]:
            yield Predicted(
                settings=frozenset(change["written"] for change in row["changes"]),
                **{key: gain[key] / step_ms for key in ("low", "mid", "high")},
                by="tune",
            )


def _advised(run: Path) -> Iterator[Predicted]:
    _said(["analyze", str(run), "-o", str(run / "report"), "--force"])
    file = run / "report" / "diagnosis.json"
    for found in json.loads(file.read_text())["opportunities"] if file.exists() else ():
        gain, frac = found["gain"], found["gain_frac"]
        mid_ms = gain["mid_ms"]
        scale = frac / mid_ms if frac is not None and mid_ms else None
        written = frozenset(s["dialects"]["perfdoc"] for s in found["settings"] if "perfdoc" in s["dialects"])
        if written and scale is not None:
            low, high = (None if gain[key] is None else gain[key] * scale for key in ("low_ms", "high_ms"))
            yield Predicted(settings=written, low=low, mid=frac, high=high, by=", ".join(found["codes"]))


def _said(words: Sequence[str]) -> tuple[Any, str]:
    """The JSON that a command printed, and its last line for people."""
    done = subprocess.run([sys.executable, "-m", "perfdoc", *words], capture_output=True, text=True)
    start, lines = done.stdout.find("{"), done.stderr.strip().splitlines()
    return json.loads(done.stdout[start:]) if start >= 0 else {}, lines[-1] if lines else ""


def rows(results: Sequence[Any], runs: Path) -> Iterator[list[str]]:
    """Of every change that was measured: what was predicted, what came, and whether the band held."""
    clean = {result["name"]: result["clean_ms"] for result in results if result["clean_ms"]}
    if all(name in clean for name in NOISE):
        noise = abs(clean[NOISE[0]] - clean[NOISE[1]]) / clean[NOISE[0]]
        yield [" and ".join(NOISE), "", f"{noise:.1%} apart", "", "the noise between two runs alike"]
    for base in RUNS:
        changes = [run for run in RUNS if run.base == base.name and {base.name, run.name} <= clean.keys()]
        known, silent = predictions(runs / base.name) if changes else ([], "")
        for run in changes:
            if changed := frozenset(run.settings) - frozenset(base.settings):
                gain = 1 - clean[run.name] / clean[base.name]
                said = next((each for each in known if each.settings == changed), None)
                yield [run.name, *_cells(said, gain, silent)]


def _cells(said: Predicted | None, gain: float, silent: str = "") -> list[str]:
    if said is None or said.mid is None:
        return ["not predicted", f"{gain:+.1%}", "", silent.removeprefix("perfdoc: ")]
    band, holds = "", ""
    if said.low is not None and said.high is not None:
        band = f" ({said.low:+.1%} to {said.high:+.1%})"
        holds = "holds" if said.low <= gain <= said.high else "**miss**"
    return [f"{said.mid:+.1%}{band}", f"{gain:+.1%}", f"{said.mid - gain:+.1%}", f"{holds} {said.by}"]


def main() -> int:
    """Unpack, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path, help="what came back")
    output = parser.parse_args().output
    try:
        document = json.loads((output / "results.json").read_text())
    except (OSError, ValueError) as error:
        sys.stderr.write(f"compare: {output}: no results.json: {error}\n")
        return 2
    runs = output / "runs"
    unpack(output, runs)
    lines = [["change", "predicted gain (band)", "measured", "off by", "band"], ["---"] * 5]
    lines += rows(document["runs"], runs)
    sys.stdout.write("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
