"""Measured cases of one device whose communication has a known dimension, and the same with other
settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.profiling.manifest import ModelShape
from perfdoc.rules.engine.case import Case
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder
from tests.rules.cases import STEP_US, US, case_of

H100, A100, B200, GB200 = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA B200", "NVIDIA GB200")
ATTENTION = "flash_fwd_kernel"
_RANGES = {"dp": "all-grads-sync", "tp": "tp comm", "cp": "cp ring"}
ONE: dict[str, Value] = {
    "tensor_model_parallel_size": 1,
    "context_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "expert_model_parallel_size": 1,
}
"""No model parallelism."""
LLAMA_8B = ModelShape(
    name="llama3-8b",
    layers=32,
    hidden_size=4096,
    ffn_hidden_size=14336,
    attention_heads=32,
    query_groups=8,
    kv_channels=128,
    vocabulary=128256,
    sequence_length=8192,
    gated_mlp=True,
    parameters=8_000_000_000,
)


def communicating(
    folder: Path,
    dimension: str,
    exposed_us: int,
    *,
    hidden_us: int = 100,
    gpu: str = H100,
    attention_us: int = 0,
) -> Case:
    """Two steps of 1 ms: attention, a product, and at the end a bf16 all-reduce of one dimension, so much of
    it beside the product and so much beside nothing."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device(gpu_name=gpu)
    for i in range(2):
        at = i * STEP_US * US
        end = at + STEP_US * US
        thread.range(f"perfdoc.step {i}", at, end)
        if attention_us:
            device.kernel(ATTENTION, at, at + attention_us * US, launch=(thread, at, at + 1))
        device.kernel(GEMM, at + attention_us * US, end - exposed_us * US, launch=(thread, at + 1, at + 2))
        thread.range(_RANGES[dimension], at + 3, at + 9)
        begin = end - (exposed_us + hidden_us) * US
        if begin < end:
            device.kernel(ALL_REDUCE, begin, end, stream=20, launch=(thread, at + 4, at + 5))
    return case_of(folder, builder)


def having(case: Case, settings: dict[str, Value] | None = None, dialect: Dialect = "perfdoc") -> Case:
    """The same measurement with these settings and no others."""
    return replace(case, configuration=Configuration(values=settings or {}, dialect=dialect))


def with_rows(case: Case, **changes: Any) -> Case:
    """The same with changed rows in the communication tables."""
    ranks = [
        replace(r, communication=[replace(row, **changes) for row in r.communication]) for r in case.ranks
    ]
    return replace(case, captures=[replace(case.captures[0], ranks=ranks)])


def with_parts(case: Case, **changes: Any) -> Case:
    """The same with other figures of the model's parts."""
    ranks = [replace(r, kernel_parts=replace(r.kernel_parts, **changes)) for r in case.ranks]
    return replace(case, captures=[replace(case.captures[0], ranks=ranks)])


def with_exposed(case: Case, **exposed_us: float) -> Case:
    """The same with so much exposed communication in each step, taken from compute."""
    ranks = []
    for rank in case.ranks:
        ns = {d: round(us * US * rank.window.steps) for d, us in exposed_us.items()}
        now = rank.ledger.exposed_comm.by_name
        more = sum(ns.values()) - sum(now[d] for d in ns)
        exposed = replace(rank.ledger.exposed_comm, **ns)
        ledger = replace(rank.ledger, exposed_comm=exposed, compute=rank.ledger.compute - more)
        ranks.append(replace(rank, ledger=ledger))
    return replace(case, captures=[replace(case.captures[0], ranks=ranks)])
