"""perfdoc beside tools that answer the same questions: seconds, memory, the answers and how far they are off.

    python benchmarks/peers.py --nsys-ai VENV/bin/python --hta VENV/bin/python [--rounds 3] [--kernels 200000]

All tools read the same files in one run, in turns, each time in a fresh process. An answer is held against
the exact count of benchmarks/peers_exact.py, and where a tool defines a question otherwise, against the exact
count of its own definition too. docs/peers.md says what each is asked and how it counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from peers_table import Answered, exact_cells, head_lines, tool_cells
from process import Run, descendants

# Standard library only in this process, which all that is measured is forked from.
HERE = Path(__file__).resolve().parent
SAMPLE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One way to ask: its label, the kinds of trace that it reads, and the Python that has it."""

    label: str
    ask: str
    kinds: tuple[str, ...]
    python: str
    options: tuple[str, ...] = ()
    cached: bool = False
    """Whether what the turn before has left beside the files is kept."""


@dataclass(frozen=True, kw_only=True)
class Turn(Run):
    """The peak is that of one process or, if larger, of samples of all."""

    error: str


@dataclass(kw_only=True)
class Measured:
    """All turns of one tool on one case."""

    runs: list[Turn] = field(default_factory=list)
    answers: dict[str, Any] | None = None
    error: str = ""


def proportional_mb(pid: int) -> float:
    """Memory of a process and of all below it, each shared page divided by those that share it."""
    total_kb = 0
    for one in descendants(pid):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total_kb / 1e3


def limited(command: Sequence[str], limit_s: float) -> Turn:
    """Run a command to its end, or for so long."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as messages:
        begin = time.perf_counter()
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=messages, env=environment, start_new_session=True
        )
        sampled, done = [0.0], threading.Event()

        def watch() -> None:
            while not done.wait(SAMPLE_S):
                sampled[0] = max(sampled[0], proportional_mb(child.pid))
                if time.perf_counter() - begin > limit_s:
                    os.killpg(child.pid, 9)
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - begin
        done.set()
        watcher.join()
        child.returncode = os.waitstatus_to_exitcode(status)
        error = ""
        if wall_s > limit_s:
            error = f"no answer in {limit_s:.0f} s"
        elif child.returncode:
            messages.seek(0)
            lines = messages.read().decode("utf-8", "replace").strip().splitlines()
            error = lines[-1][:120] if lines else f"exit {child.returncode}"
    return Turn(
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mb=max(sampled[0], usage.ru_maxrss / 1e3),
        error=error,
    )


def copies(files: Sequence[str], folder: Path) -> list[str]:
    """Files of a turn: tools leave caches beside what they read."""
    folder.mkdir(parents=True)
    return [str(shutil.copy(file, folder / Path(file).name)) for file in files]


def turn(
    tool: Tool, files: Sequence[str], scratch: Path, limit_s: float
) -> tuple[Turn, dict[str, Any] | None]:
    """Ask once; the answers, or None where there are none."""
    out, beside = scratch / "answers.json", scratch / tool.ask
    out.unlink(missing_ok=True)
    if not tool.cached:
        shutil.rmtree(beside, ignore_errors=True)
    given = [str(beside / Path(f).name) for f in files] if beside.exists() else copies(files, beside)
    asking = [tool.python, str(HERE / "peers_ask.py"), tool.ask, str(out)]
    if tool.ask == "perfdoc":
        report = scratch / "report"
        shutil.rmtree(report, ignore_errors=True)
        command = [tool.python, "-m", "perfdoc", "analyze", *given, "--window", "capture", "-o", str(report)]
        run = limited([*command, *tool.options], limit_s)
        if not run.error and (
            why := limited([*asking, str(report / "diagnosis.json"), *given], limit_s).error
        ):
            run = replace(run, error=why)
    else:
        run = limited([*asking, *given], limit_s)
    return run, json.loads(out.read_text()) if out.exists() and not run.error else None


def tools_of(options: argparse.Namespace) -> list[Tool]:
    both = ("nsys", "kineto")
    tools = [
        Tool(label="perfdoc", ask="perfdoc", kinds=both, python=sys.executable),
        Tool(
            label="perfdoc, no replay",
            ask="perfdoc",
            kinds=both,
            python=sys.executable,
            options=("--no-replay",),
        ),
    ]
    if options.nsys_ai:
        of = {"ask": "nsys-ai", "kinds": ("nsys",), "python": options.nsys_ai}
        tools += [Tool(label="nsys-ai, first", **of), Tool(label="nsys-ai, again", cached=True, **of)]
    if options.hta:
        of = {"kinds": ("kineto",), "python": options.hta}
        tools += [Tool(label="HTA", ask="hta", **of), Tool(label="HTA, all steps", ask="hta_all", **of)]
    return tools


def measure(
    case: Mapping[str, Any], tools: Sequence[Tool], options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Measured]]:
    """The exact counts of a case, and every tool's turns. The fastest counts: the first fills caches."""
    found: dict[str, Measured] = defaultdict(Measured)
    with tempfile.TemporaryDirectory(prefix="perfdoc-peers-") as folder:
        exact = Path(folder) / "exact.json"
        command = [sys.executable, str(HERE / "peers_exact.py"), case["kind"], str(exact), *case["files"]]
        subprocess.run(command, check=True)
        for _ in range(options.rounds):
            for tool in tools:
                one = found[tool.label]
                if case["kind"] not in tool.kinds or one.error:
                    continue
                run, answers = turn(tool, case["files"], Path(folder), options.limit)
                # One failure is told, whatever a turn before it answered.
                one.error, one.answers = run.error, None if run.error else answers
                one.runs.append(run)
        return json.loads(exact.read_text()), found


def main() -> int:
    """Print a table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nsys-ai", help="the Python of a venv that has nsys-ai")
    parser.add_argument("--hta", help="the Python of a venv that has HolisticTraceAnalysis")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", type=int, default=200_000, help="of the generated trace")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that one turn may take")
    parser.add_argument("--only", default="", help="cases whose name or kind has this in it")
    parser.add_argument("--traces", type=Path, default=HERE.parents[1] / "shared/traces")
    parser.add_argument("--folder", type=Path, default=HERE / "data/peers", help="where files are made")
    options = parser.parse_args()
    command = [sys.executable, str(HERE / "peers_files.py"), f"--traces={options.traces}"]
    command += [f"--folder={options.folder}", f"--kernels={options.kernels}"]
    cases = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    tools = tools_of(options)
    for line in head_lines():
        print(line)
    for case in cases:
        if options.only not in f"{case['name']} {case['kind']}":
            continue
        exact, found = measure(case, tools, options)
        show(case, exact, tools, found)
    return 0


def show(
    case: Mapping[str, Any], exact: Mapping[str, Any], tools: Sequence[Tool], found: Mapping[str, Measured]
) -> None:
    """The rows of one case: what is exact, then every tool."""
    size_mb = sum(Path(file).stat().st_size for file in case["files"]) / 1e6
    title = f"{case['name']} ({case['kind']}, {exact['kernels']['kernels']:,} kernels, {size_mb:,.1f} MB)"
    for label, population in sorted(exact.items(), key=lambda item: item[0] != "kernels"):
        print("|", " | ".join((title, *exact_cells(label, population))), "|")
        title = ""
    for tool in tools:
        if not (one := found[tool.label]).runs:
            continue
        best = Run.best(one.runs)
        answered = Answered(
            label=tool.label,
            wall_s=best.wall_s,
            cpu_s=best.cpu_s,
            peak_mb=best.peak_mb,
            error=one.error,
            answers=one.answers,
            own=tool.ask if tool.ask in exact else "",
        )
        print("|", " | ".join(("", *tool_cells(answered, exact))), "|", flush=True)


if __name__ == "__main__":
    sys.exit(main())
