"""Rules of the CPU trainer, each on a configuration that shows its problem: profiled, advised, verified.

    python benchmarks/verified.py [--repeats 4] [--steps 30] [--only gc,workers] [--keep FOLDER]

Every case is `perfdoc run`, then `perfdoc verify` with what the run's own report advises; nothing is chosen
after the figures are known. The cases that need a slow network run in a namespace with a limited loopback
(root), and are left out with the reason where that cannot be made. Prints the table of docs/tune.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from limited_network import Loopback, limited_loopback  # noqa: E402

from perfdoc.compare.verify.record import Record, read_record  # noqa: E402
from perfdoc.compare.verify.words import measured_text, predicted_text  # noqa: E402

COMMON = ("tiny", "eval_interval=null", "log_interval=1000", "train_iters=24", "manual_gc_interval=0")
_LIMIT_S = 1800


@dataclass(frozen=True, kw_only=True)
class Case:
    """A configuration with a problem, and the rule that should see it."""

    key: str
    what: str
    rule: str
    settings: Sequence[str]
    knobs: Sequence[str] = ()
    """Only these of what is advised."""
    environment: Mapping[str, str] = field(default_factory=dict)
    rate: str = ""
    """Of the loopback; not limited where it is empty."""
    statistic: str = "quickest"
    """Of a run's steps; the machines that this runs on are rarely one's own."""


_SLOW_DATA = {"PERFDOC_DATA_DELAY_MS": "10", "PYTHONPATH": str(HERE / "slow_data")}
CASES = (
    Case(
        key="gc", what="a garbage collection in every step", rule="PD202", settings=["manual_gc_interval=1"]
    ),
    Case(
        key="workers",
        what="10 ms a sample to read, no loading processes",
        rule="PD203",
        settings=[],
        environment=_SLOW_DATA,
    ),
    Case(
        key="bytes",
        what="bf16, gradients reduced in fp32 and in small buckets, 30 Mbit/s",
        rule="PD101",
        settings=["params_dtype=bf16", "grad_reduce_in_fp32=true"],
        rate="30mbit",
    ),
    Case(
        key="gather",
        what="weights gathered before the forward pass and not beside it, 200 Mbit/s",
        rule="PD101",
        settings=["overlap_param_gather=false", "micro_batch_size=16"],
        knobs=["overlap_param_gather"],
        rate="200mbit",
    ),
    Case(
        key="overlap",
        what="nothing overlapped, all gradients in one bucket, 200 Mbit/s",
        rule="PD101",
        settings=["overlap_grad_reduce=false", "overlap_param_gather=false", "bucket_size=null"],
        rate="200mbit",
    ),
)


def verified(case: Case, folder: Path, loopback: Loopback | None, given: argparse.Namespace) -> Record | str:
    """The record of a case, or the last line of what went wrong."""
    environment = {**os.environ, **case.environment}
    paths = [case.environment.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    run, out = folder / f"{case.key}-run", folder / f"{case.key}-verify"
    cache = f"data.data_cache={folder / 'data'}"
    words = [
        ["run", *COMMON, *case.settings, cache, "--profiler", "torch", "-o", str(run)],
        [
            *("verify", str(run), "--apply", case.rule, "--repeats", str(given.repeats)),
            *("--steps", str(given.steps), "-o", str(out), "--note", given.note),
            *("--statistic", case.statistic),
            *(word for knob in case.knobs for word in ("--knob", knob)),
        ],
    ]
    for arguments in words:
        command = [sys.executable, "-m", "perfdoc", *arguments]
        if loopback is not None:
            command = loopback.inside(command)
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode not in (0, 3):
            return (done.stderr.strip().splitlines() or ["no word"])[-1]
    return read_record(out / "verify.json")


def row(case: Case, found: Record | str) -> str:
    """A line of the table."""
    if isinstance(found, str):
        return f"| {case.rule} | {case.what} | not verified: {found} | | | |"
    settings = "; ".join(f"`{s.knob}` {s.before} → {s.after}" for s in found.settings)
    cells = [case.rule, case.what, settings, predicted_text(found.predicted), measured_text(found)]
    return "| " + " | ".join([*cells, f"**{found.verdict}**"]) + " |"


def main() -> int:
    """Print the table; 1 where a case could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", default="", help="keys with commas; all if not given")
    parser.add_argument("--note", default="", help="kept in every record")
    parser.add_argument("--keep", type=Path, help="folder for runs and records; a temporary one if not given")
    given = parser.parse_args()
    chosen = [c for c in CASES if not given.only or c.key in given.only.split(",")]
    if not chosen:
        parser.error(f"--only: there are {', '.join(c.key for c in CASES)}")
    failed = 0
    with ExitStack() as stack:
        folder = (given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        heads = ("rule", "case", "setting", "predicted", "measured", "verdict")
        print("| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", sep="\n", flush=True)
        for case in chosen:
            with ExitStack() as own:
                try:
                    lo = own.enter_context(limited_loopback(case.rate)) if case.rate else None
                except (OSError, subprocess.CalledProcessError) as error:
                    print(row(case, f"no limited loopback: {error}"), flush=True)
                    continue
                found = verified(case, folder, lo, given)
            failed += isinstance(found, str)
            print(row(case, found), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
