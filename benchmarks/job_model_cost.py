"""What the job's model costs: building it from 64 and from 1,024 ranks, and evaluations a second.

    python benchmarks/job_model_cost.py

llama3-70b on TP 8 and PP 4. One pipeline is simulated, captured and measured; its ranks then stand for all.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from job_model_table import captured, facts_of, simulated  # noqa: E402

from perfdoc.simulator.forward.layout import parse_layout  # noqa: E402
from perfdoc.simulator.job.predict import Models, build_models  # noqa: E402
from perfdoc.simulator.job.settings import captured_settings  # noqa: E402
from perfdoc.simulator.work.rank import RankWork  # noqa: E402
from perfdoc.traces.known_models import known_models  # noqa: E402


def ranks_of(pipeline: list[RankWork], dp: int) -> list[RankWork]:
    """A job of this many replicas, every pipeline like the one captured."""
    each = 8 * dp
    return [
        replace(work, rank=stage * each + i, world_size=4 * each, group=tuple(s * each + i for s in range(4)))
        for stage, work in enumerate(pipeline)
        for i in range(each)
    ]


def evaluations(models: Models) -> tuple[int, float]:
    """(settings that differ, evaluations a second), each with its band."""
    base = models.model.settings
    tried = [
        replace(base, vpp=vpp, messages_overlap=vpp > 1, micro_batches=count // mbs, mbs=mbs, tp=tp, dp=dp)
        for vpp in (1, 2, 4, 5, 10, 20)
        for count in (8, 16, 32)
        for mbs in (1, 2)
        for tp, dp in ((8, base.dp), (4, 2 * base.dp))
    ]
    begin = time.perf_counter()
    for new in tried:
        models.gain(new)
    return len(tried), len(tried) / (time.perf_counter() - begin)


def main() -> int:
    """Print the table."""
    shape, layout = known_models()["llama3-70b"], parse_layout("tp=8,pp=4,dp=2")
    simulation, facts = simulated(shape, layout), facts_of(shape, layout)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        pipeline = captured(simulation, (0, 16, 32, 48), facts, Path(folder))
        print(f"written and measured: {(time.perf_counter() - begin) / 4:.2f} s a capture")
    print("| captured ranks | building the models | evaluations a second |", "|---" * 3 + "|", sep="\n")
    for name, ranks in (
        ("rank 0", ranks_of(pipeline, 2)[:1]),
        ("64", ranks_of(pipeline, 2)),
        ("1,024", ranks_of(pipeline, 32)),
        ("16,384", ranks_of(pipeline, 512)),
    ):
        begin = time.perf_counter()
        models = build_models(ranks, captured_settings(ranks, facts, None), shape)
        built_ms = 1e3 * (time.perf_counter() - begin)
        count, rate = evaluations(models)
        print(f"| {name} | {built_ms:.0f} ms | {rate:,.0f} ({count} settings) |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
