"""Other layouts, batches and schedules, predicted by the job's model and measured on real runs (CPU, gloo).

    python benchmarks/predicted_layouts.py [--repeats 3] [--steps 12] [--only dp] [--keep FOLDER] [--again]

Each job is profiled once; its changes are predicted from the captures of both ranks, and from rank 0's alone.
Then runs as they are and with each change are measured in turn without the profiler, as in predicted.py. The
quickest run of each counts, which other work on the machine disturbed least; the spread is that of pairs. The
profiler makes steps of CPU ranks longer: gains are scaled by the unprofiled step over the profiled one. With
--keep the runs stay, and --again predicts anew from them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from predicted import Runner, step_ms  # noqa: E402
from predicted_changes import NO_OVERLAP, Change  # noqa: E402

from perfdoc.analyzers.device.window import WindowRequest  # noqa: E402
from perfdoc.analyzers.measure import measure_capture  # noqa: E402
from perfdoc.simulator.job.predict import build_models  # noqa: E402
from perfdoc.simulator.job.settings import JobSettings, captured_settings, spread_layers  # noqa: E402
from perfdoc.simulator.work.rank import RankWork, rank_work  # noqa: E402
from perfdoc.traces.job_facts import JobFacts  # noqa: E402

PLAIN = (*NO_OVERLAP, "use_distributed_optimizer=false")
_ONE = "data_parallel_size=1"
TP = (_ONE, "tensor_model_parallel_size=2")
PP = (_ONE, "pipeline_model_parallel_size=2")
CP = (_ONE, "context_parallel_size=2")
VPP = ("virtual_pipeline_model_parallel_size=2", "overlap_p2p_comm=true")
TWICE = ("global_batch_size=64",)
EXPERTS = ("num_moe_experts=4", "moe_router_topk=2", "moe_ffn_hidden_size=352", "moe_grouped_gemm=false")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as it is, and its changes: what is set, and what the model is asked."""

    name: str
    settings: Sequence[str]
    changes: Mapping[str, tuple[Sequence[str], Mapping[str, int]]]


JOBS: Mapping[str, Job] = {
    "dp": Job(
        name="DP 2, 4 micro-batches of 4",
        settings=PLAIN,
        changes={
            "TP 2": ((*PLAIN, *TP), {"dp": 1, "tp": 2, "micro_batches": 8}),
            "PP 2": ((*PLAIN, *PP), {"dp": 1, "pp": 2, "micro_batches": 8}),
            "CP 2": ((*PLAIN, *CP), {"dp": 1, "cp": 2, "micro_batches": 8}),
            "twice the micro-batches": ((*PLAIN, *TWICE), {"micro_batches": 8}),
            "2 micro-batches of 8": ((*PLAIN, "micro_batch_size=8"), {"micro_batches": 2, "mbs": 8}),
            "8 micro-batches of 2": ((*PLAIN, "micro_batch_size=2"), {"micro_batches": 8, "mbs": 2}),
        },
    ),
    "pp": Job(
        name="PP 2, 4 micro-batches of 8",
        settings=(*PLAIN, *PP, "micro_batch_size=8"),
        changes={
            "VPP 2": ((*PLAIN, *PP, "micro_batch_size=8", *VPP), {"vpp": 2}),
            "DP 2": ((*PLAIN, "micro_batch_size=8"), {"dp": 2, "pp": 1, "micro_batches": 2}),
            "twice the micro-batches": ((*PLAIN, *PP, "micro_batch_size=8", *TWICE), {"micro_batches": 8}),
            "8 micro-batches of 4": ((*PLAIN, *PP), {"micro_batches": 8, "mbs": 4}),
        },
    ),
    "tp": Job(
        name="TP 2, 8 micro-batches of 4",
        settings=(*PLAIN, *TP),
        changes={
            "DP 2": (PLAIN, {"dp": 2, "tp": 1, "micro_batches": 4}),
            "4 micro-batches of 8": ((*PLAIN, *TP, "micro_batch_size=8"), {"micro_batches": 4, "mbs": 8}),
        },
    ),
    "ep": Job(
        name="4 experts, EP 2",
        settings=(*PLAIN, *EXPERTS, "expert_model_parallel_size=2"),
        changes={"EP 1": ((*PLAIN, *EXPERTS), {"ep": 1})},
    ),
}


def run_all(runner: Runner, job: Job, repeats: int) -> dict[str, object]:
    """The profiled run, and steps in ms by change and repeat; a change that fails has its reason."""

    def run(settings: Sequence[str], *, profile: bool = False) -> Path:
        change = Change(key="", name=job.name, before=settings, after=settings, edits=lambda _: [])
        return runner.run(change, settings, None, profile=profile)

    found: dict[str, object] = {"profiled": str(run(job.settings, profile=True))}
    took: dict[str, list[float]] = {}
    every = {"": job.settings, **{name: c[0] for name, c in job.changes.items()}}
    for i in range(repeats):
        for name in every if i % 2 == 0 else reversed(every):
            if name in found:
                continue
            try:
                took.setdefault(name, []).append(step_ms(run(every[name])))
            except RuntimeError as error:
                found[name] = str(error).strip().splitlines()[-1]
    return {**found, "took": took, "load": os.getloadavg()}


def works_of(run: Path) -> tuple[list[RankWork], JobFacts]:
    """What the captures of a run say."""
    works, facts = [], JobFacts()
    for path in sorted((run / "traces").glob("rank*.json.gz")):
        capture = measure_capture(path, WindowRequest(), None, rank_work)
        facts = capture.facts
        works += [replace(r.also, rank=r.device.rank) for r in capture.ranks if isinstance(r.also, RankWork)]
    return works, facts


def asked(base: JobSettings, change: Mapping[str, int]) -> JobSettings:
    """The settings with some anew."""
    new = replace(base, **change)  # type: ignore[arg-type]
    return replace(new, layers=spread_layers(sum(base.layers), new.pp), messages_overlap=new.vpp > 1)


def table(job: Job, runs: Mapping[str, object], errors: dict[str, list[float]]) -> None:
    """Predict, and print beside what was measured."""
    took = runs["took"]
    assert isinstance(took, dict)
    works, facts = works_of(Path(str(runs["profiled"])))
    before = min(took[""])
    for name, (_, change) in job.changes.items():
        cells = [f"{job.name}, then {name}", f"{before:.0f} ms"]
        if name not in took:
            print("| " + " | ".join([*cells, f"not run: {runs.get(name)}"]) + " | | |", flush=True)
            continue
        gains = [b - a for b, a in zip(took[""], took[name], strict=False)]
        measured = before - min(took[name])
        gains.append(measured)
        cells.append(f"{measured:+.1f} ms ({min(gains):+.1f} to {max(gains):+.1f})")
        for ranks, some in (("all", works), ("rank 0", works[:1])):
            try:
                base = captured_settings(some, facts, None)
                models = build_models(some, base, facts.model)
                gain = models.gain(asked(base, change))
            except ValueError as error:
                cells.append(f"abstains: {error}")
                continue
            free = before / (models.model.measured_ns / 1e6)
            low, mid, high = ((ms or 0.0) * free for ms in (gain.low_ms, gain.mid_ms, gain.high_ms))
            error = (mid - measured) / before
            errors.setdefault(ranks, []).append(abs(error))
            miss = "" if low <= max(gains) and min(gains) <= high else " **miss**"
            cells.append(f"{mid:+.1f} ({low:+.1f} to {high:+.1f}); {error:+.1%}{miss}")
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="counted steps of a measured run")
    parser.add_argument("--only", default="", help="keys with commas; all if not given")
    parser.add_argument("--keep", type=Path, help="folder for the runs; a temporary one if not given")
    parser.add_argument("--again", action="store_true", help="predict from the runs in --keep")
    given = parser.parse_args()
    errors: dict[str, list[float]] = {}
    print("| change | step before | measured (spread) | all ranks: predicted (band); error | rank 0 |")
    print("|---" * 5 + "|", flush=True)
    with ExitStack() as stack:
        made = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for key, job in JOBS.items():
            folder = made.resolve() / key
            folder.mkdir(parents=True, exist_ok=True)
            if given.only and key not in given.only.split(","):
                continue
            if not given.again:
                try:
                    runs = run_all(Runner(folder, given.steps), job, given.repeats)
                except RuntimeError as error:
                    print(f"| {job.name} | failed: {str(error).splitlines()[-1]} | | | |", flush=True)
                    continue
                (folder / "runs.json").write_text(json.dumps(runs))
            if (folder / "runs.json").exists():
                table(job, json.loads((folder / "runs.json").read_text()), errors)
    for ranks, some in errors.items():
        print(f"\n{ranks}: mean absolute error {statistics.fmean(some):.1%} of the step over {len(some)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
