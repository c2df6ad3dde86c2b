"""Everything of the trainer that needs a GPU, in one go: `python benchmarks/gpu_check.py [-o DIR] [--quick]`.

Runs `perfdoc run` on the tiny configuration and on the 8B shape cut to the layers that fit one GPU, with
nsys where it is installed and else the PyTorch profiler, then variants (recompute, automatic garbage
collection, CUDA graphs, FP8, two GPUs) whose measured step times a prediction can be held against. Every run
is analysed. The table at the end, also in DIR/table.md, says of each: the median of its unprofiled steps as
logged, the profiled steps as logged and as analysed with the difference (bar: 2 %), MFU, and peak memory.
DIR holds the run directories with their traces and reports, a log of each, and results.json.

A run that this machine cannot do is a row with the reason. Exit code 0: all that ran ended well and within
the bar; 1: not so, or not measured; 2: nothing could be run. `--device cpu` tries the script itself, on a
sixteenth of the width.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_runs import GIB, Machine, PlannedRun, planned_runs

BAR_FRAC = 0.02
"""Between a profiled step's time as logged and as analysed (issue: 2 %)."""
WINDOW = (6, 3)
"""First profiled step and how many."""
WARM_STEPS = 4
"""Steps at the start that are not in the median."""
VERSIONS = ("torch", "megatron-core", "transformer-engine", "nvtx", "perfdoc")
STOP_GRACES_S = (60.0, 30.0, 10.0)
"""After each SIGTERM to `perfdoc run`: it finishes its step, it ends its ranks, it kills them."""
ANNOUNCEMENTS = re.compile(
    r"(nsys (of unknown version|[\d.]+): |PyTorch profiler: |no profiler: |.* -m perfdoc\.trainer\.main "
    r"|rank \d+: ended because another rank did|\d+ of \d+ files analysed|wrote )"
)
"""What `perfdoc run` says of its doings, which is no reason for its end."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run. None: not known."""

    name: str
    state: str
    """ok, failed or skipped."""
    reason: str
    """Why it failed or was skipped."""
    settings: tuple[str, ...]
    profiler: str | None = None
    step_ms: float | None = None
    """Median of the unprofiled steps as logged, rank 0."""
    profiled_ms: float | None = None
    analysed_ms: float | None = None
    difference_frac: float | None = None
    """Median difference of the analysed from the logged steps, as the diagnosis has it."""
    agrees: bool | None = None
    mfu: float | None = None
    """Of the unprofiled median, by run.json's FLOPs and peak."""
    tokens_per_second: float | None = None
    peak_gib: float | None = None
    """Highest allocation of the profiled steps; on a CPU the process's resident peak."""
    seconds: float | None = None
    """The whole command."""


def environment() -> dict[str, str]:
    """Of the runs: this one's, with a PYTHONPATH that holds in any working directory."""
    given = dict(os.environ)
    if path := given.get("PYTHONPATH"):
        given["PYTHONPATH"] = os.pathsep.join(str(Path(entry).resolve()) for entry in path.split(os.pathsep))
    return given


def find_machine(device: str) -> Machine:
    """What there is. Raises RuntimeError, in one line, where nothing can be run."""
    with tempfile.TemporaryDirectory() as elsewhere:  # the runs start in another directory than this one too
        for module in ("perfdoc", "torch", "megatron.core"):
            line = [sys.executable, "-c", f"import importlib.util as u; assert u.find_spec({module!r})"]
            if subprocess.run(line, cwd=elsewhere, env=environment(), capture_output=True).returncode:
                raise RuntimeError(f"{module} is not installed: pip install 'perfdoc[train]'")
    import torch

    nsys = bool(os.environ.get("PERFDOC_NSYS") or shutil.which("nsys"))
    if device == "cpu":
        if torch.cuda.is_available():
            raise RuntimeError("--device cpu: there is a GPU; hide it with CUDA_VISIBLE_DEVICES=")
        return Machine(device="cpu", gpus=0, memory_bytes=0, nsys=nsys)
    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no CUDA device (--device cpu tries the script)")
    total = min(torch.cuda.mem_get_info(i)[1] for i in range(torch.cuda.device_count()))
    return Machine(device="cuda", gpus=torch.cuda.device_count(), memory_bytes=total, nsys=nsys)


def describe_machine() -> list[str]:
    """Names and versions, for the head of the table."""
    import torch

    lines = [f"command: {shlex.join(['python', *sys.argv])}"]
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        lines.append(f"GPU {i}: {torch.cuda.get_device_name(i)}")
    versions = []
    for package in VERSIONS:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} not installed")
    lines.append(", ".join(versions) + f", CUDA {torch.version.cuda or 'none'}")
    for name, line in (
        ("nsys", [os.environ.get("PERFDOC_NSYS") or "nsys", "--version"]),
        ("driver", ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
    ):
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=60)
            said = done.stdout.strip().splitlines() if done.returncode == 0 else []
        except (OSError, subprocess.TimeoutExpired):
            said = []
        lines.append(f"{name}: {said[0] if said else 'not found'}")
    return lines


def carry_out(run: PlannedRun, folder: Path, timeout_s: float) -> Result:
    """Start one run and read what it left."""
    if run.skip:
        return Result(name=run.name, state="skipped", reason=run.skip, settings=run.settings)
    out = folder / run.name
    words = ["run", run.config, *run.settings, "-o", str(out), "--profiler", run.profiler]
    words += ["--profile-start", str(WINDOW[0]), "--profile-steps", str(WINDOW[1])]
    sys.stderr.write(f"{run.name}: perfdoc {shlex.join(words)}\n")
    begin = time.monotonic()
    with (folder / f"{run.name}.log").open("w") as log:
        line = [sys.executable, "-m", "perfdoc", *words]
        process = subprocess.Popen(
            line, stderr=log, stdout=log, cwd=folder, env=environment(), process_group=0
        )
        try:
            code = process.wait(timeout_s)
            reason = (
                "" if code == 0 else last_word((folder / f"{run.name}.log").read_text(errors="replace"), code)
            )
        except subprocess.TimeoutExpired:
            reason = f"did not end within {timeout_s:.0f} s"
        finally:
            if process.returncode is None:
                stop(process, STOP_GRACES_S)
    seconds = time.monotonic() - begin
    figures: dict[str, Any] = {}
    for read in (logged_figures, analysed_figures):
        try:
            figures |= read(out)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = reason or f"what it left cannot be read: {type(error).__name__}: {error}"
    state = "failed" if reason else "ok"
    return Result(
        name=run.name, state=state, reason=reason, settings=run.settings, seconds=seconds, **figures
    )


def stop(process: subprocess.Popen[bytes], graces_s: Sequence[float]) -> None:
    """End a run and what it started: SIGTERM, which perfdoc passes on to the training, then SIGKILL."""
    for grace_s in graces_s:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_word(log: str, code: int) -> str:
    """Why a run ended: perfdoc's first line that is no announcement, else the last line of all."""
    lines = [line for line in log.splitlines() if line.strip()]
    said = [line.removeprefix("perfdoc: ") for line in lines if line.startswith("perfdoc: ")]
    told = [line for line in said if not ANNOUNCEMENTS.match(line)]
    return (told[0] if told else ": ".join([f"ended with code {code}", *lines[-1:]]))[:300]


def logged_figures(out: Path) -> dict[str, Any]:
    """What the run logged. Raises OSError, ValueError and KeyError for a directory without it."""
    manifest = json.loads((out / "run.json").read_text())
    steps = [json.loads(line) for line in (out / "steps" / "rank0.jsonl").read_text().splitlines()]
    plain = [s for s in steps if not s["profiled"] and s["step"] > WARM_STEPS]
    figures: dict[str, Any] = {
        "profiler": manifest["profile"]["profiler"],
        "peak_gib": _peak_gib(out / "memory" / "rank0.jsonl"),
    }
    if plain:
        step_ns = statistics.median(s["duration_ns"] for s in plain)
        figures["step_ms"] = step_ns / 1e6
        figures["tokens_per_second"] = plain[0]["tokens"] / (step_ns / 1e9)
        flops = manifest["flops"]["per_step"]
        peak = manifest["hardware"]["peak_flops_per_second"]
        if flops and peak:
            figures["mfu"] = flops / (step_ns / 1e9) / (peak * manifest["layout"]["world_size"])
    return figures


def analysed_figures(out: Path) -> dict[str, Any]:
    """What the analysis says of its steps. Raises as `logged_figures` does, and TypeError."""
    times = json.loads((out / "report" / "diagnosis.json").read_text())["analyses"]["step_times"]
    figures: dict[str, Any] = {}
    for key, name in (("profiled", "profiled_ms"), ("analysed", "analysed_ms")):
        if times[key] is not None:
            figures[name] = times[key]["median_ns"] / 1e6
    agreement = times["agreement"]
    if agreement["state"] == "measured":
        figures["difference_frac"] = agreement["median_frac"]
        figures["agrees"] = agreement["median_frac"] <= BAR_FRAC
    return figures


def _peak_gib(file: Path) -> float | None:
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for key in ("peak_allocated_bytes", "peak_resident_bytes"):
        if found := [row[key] for row in rows if row.get(key)]:
            return float(max(found)) / GIB
    return None


def table(results: list[Result], head: list[str]) -> str:
    """Markdown: what the machine is, and a row for each run."""
    columns = ("run", "profiler", "step", "profiled", "analysed", "differ", "MFU", "tokens/s", "peak", "")
    rows = [columns, tuple("---" for _ in columns)]
    for r in results:
        note = r.state if not r.reason else f"{r.state}: {r.reason}"
        rows.append(
            (
                r.name,
                r.profiler or "",
                _shown(r.step_ms, "{:.1f} ms"),
                _shown(r.profiled_ms, "{:.1f} ms"),
                _shown(r.analysed_ms, "{:.1f} ms"),
                "not measured"
                if unmeasured(r)
                else _shown(r.difference_frac, "{:.2%}") + " MISS" * (r.agrees is False),
                _shown(r.mfu, "{:.1%}"),
                _shown(r.tokens_per_second, "{:,.0f}"),
                _shown(r.peak_gib, "{:.1f} GiB"),
                note.replace("|", "/"),
            )
        )
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*(f"- {line}" for line in head), "", *lines]) + "\n"


def unmeasured(result: Result) -> bool:
    """Whether a run that ended well leaves open if its analysed steps keep to the bar."""
    return result.state == "ok" and result.agrees is None


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def main() -> int:
    """Run everything that this machine can do."""
    parser = argparse.ArgumentParser(description="The checks of the trainer that need a GPU.")
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu-check"), help="a new folder")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="fewer steps and variants")
    parser.add_argument("--layers", type=int, help="of the 8B shape, if memory runs out")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one run")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `stop`
    try:
        machine = find_machine(given.device)
        given.output.mkdir(parents=True)
    except (RuntimeError, OSError) as error:
        sys.stderr.write(f"gpu_check: {error}\n")
        return 2
    folder = given.output.resolve()
    head = describe_machine()
    results: list[Result] = []
    for run in planned_runs(machine, quick=given.quick, layers=given.layers):
        results.append(carry_out(run, folder, given.timeout))
        # Written after each: a machine may be taken away in the midst of it.
        document = {"machine": asdict(machine), "head": head, "runs": [asdict(r) for r in results]}
        (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")
        (folder / "table.md").write_text(table(results, head))
    sys.stdout.write(table(results, head))
    return int(any(r.state == "failed" or r.agrees is False or unmeasured(r) for r in results))


if __name__ == "__main__":
    sys.exit(main())
