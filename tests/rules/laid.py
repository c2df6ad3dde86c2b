"""Steps of 1 ms laid kernel by kernel, and cases with other settings, facts and memory than they came
with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.profiling.manifest import ModelShape
from perfdoc.results.capture_parts import StartUp
from perfdoc.results.memory import AllocatorCalls, DeviceMemory, MemoryAnalysis, OutOfMemory
from perfdoc.rules.engine.case import Case
from tests.analyzers.memory_planted import a_step, one
from tests.captures.timeline import TimelineBuilder
from tests.rules.cases import STEP_US, US

FILL = "void at::native::vectorized_gather_kernel<16, long>(x)"
"""A kernel that is nothing of what rules look for."""
CAST = "void transformer_engine::quantize_mxfp8_kernel<x>(y)"
SOFTMAX = "void <unnamed>::softmax_warp_forward<float, float, float, (int)6, (bool)0, (bool)0>(T2 *)"
FLASH = "void flash::flash_fwd_kernel<x>(y)"
MUL = (
    "void at::native::elementwise_kernel<128, 2, at::native::BinaryFunctor<at::native::MulFunctor<float>>>(x)"
)
SILU = "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel(x)::[lambda()], y>(z)"
H100 = "NVIDIA H100 80GB HBM3"
GIB = 1 << 30
START_UP = StartUp(
    start_ns=0,
    end_ns=1,
    compute_ns=0,
    loading_ns=1,
    allocation_ns=0,
    communicator_ns=0,
    work_frac=0.9,
    left_out=False,
)
"""Of a window that is start-up as a whole."""


def laid(
    *kernels: tuple[str, int], gap_us: int = 0, gpu: str = H100, steps: int = 2, step: str = "perfdoc.step"
) -> TimelineBuilder:
    """Steps of 1 ms: kernels (name, us) behind one another, a gap behind the host, the rest filled up."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device(gpu_name=gpu)
    for i in range(steps):
        at = i * STEP_US * US
        end = at + STEP_US * US
        thread.range(f"{step} {i}", at, end)
        now, call = at, at
        for name, us in kernels:
            device.kernel(
                name.split("<")[0], now, now + us * US, full_name=name, launch=(thread, call, call + 1)
            )
            now, call = now + us * US, call + 2
        late = now + gap_us * US - 1 if gap_us else call
        if now + gap_us * US < end:
            device.kernel("fill", now + gap_us * US, end, full_name=FILL, launch=(thread, late, late + 1))
    return builder


DENSE: dict[str, Value] = {
    "cuda_graph_impl": "none",
    "recompute_granularity": None,
    "num_moe_experts": None,
    "use_te_rng_tracker": True,
}
"""Whole layers can be captured."""


def given(case: Case, dialect: Dialect | None = "perfdoc", /, **settings: Value) -> Case:
    """The same with these settings and no others."""
    return replace(case, configuration=Configuration(values=settings, dialect=dialect))


def knowing(case: Case, **facts: Any) -> Case:
    """The same with more known of the job."""
    return replace(case, job=replace(case.job, facts=replace(case.job.facts, **facts)))


def dense(**other: Any) -> ModelShape:
    """4 layers of hidden size 1024 and 4096 in the MLP, not gated; 10,000 entries; sequences of 2048."""
    shape = ModelShape(
        name="tiny",
        layers=4,
        hidden_size=1024,
        ffn_hidden_size=4096,
        attention_heads=16,
        query_groups=16,
        kv_channels=64,
        vocabulary=10_000,
        sequence_length=2048,
        gated_mlp=False,
        parameters=1 << 30,
    )
    return ModelShape(**{**{f: getattr(shape, f) for f in shape.__struct_fields__}, **other})


def starting_up(case: Case) -> Case:
    """The same as a window that is start-up and has no steps."""
    now = {"kind": "capture", "steps": 0, "runs_once": "99 % is start-up", "start_up": START_UP}
    ranks = [replace(r, window=replace(r.window, **now)) for r in case.ranks]
    return replace(case, captures=[replace(case.captures[0], ranks=ranks)])


def device_memory(
    folder: Path, *, total_gib: float | None = 80, reserved_gib: float = 60, **other: Any
) -> DeviceMemory:
    """A really measured device, with other figures."""
    measured = one(a_step(), folder)
    free = None if total_gib is None else round((total_gib - reserved_gib) * GIB)
    reserved = round(reserved_gib * GIB)
    return replace(
        measured, **{"peak_reserved_bytes": reserved, "headroom_bytes": free, "oom_events": 0, **other}
    )


def remembering(case: Case, *devices: DeviceMemory) -> Case:
    """The same with a snapshot of each of these, ranks from 0 on."""
    ranked = [replace(device, rank=i) for i, device in enumerate(devices)]
    memory = MemoryAnalysis(state="measured", reason="", remedy="", devices=ranked, processes=[])
    return replace(case, memory=memory)


def failure(*, requested_gib: float, free_gib: float, reserved_gib: float | None = None) -> OutOfMemory:
    """An allocation that failed."""
    return OutOfMemory(
        time_ns=None,
        requested_bytes=round(requested_gib * GIB),
        device_free_bytes=round(free_gib * GIB),
        allocated_bytes=0,
        reserved_bytes=None if reserved_gib is None else round(reserved_gib * GIB),
        largest_free_block_bytes=None,
        function="forward",
        file="model.py",
        line=30,
    )


def retries(count: int) -> AllocatorCalls:
    """Calls of which so many had to give memory back first."""
    return AllocatorCalls(
        segment_allocations=0,
        segment_allocated_bytes=0,
        segment_frees=0,
        segment_freed_bytes=0,
        forced_releases=count,
    )
