"""A Nsight capture of a model's passes, laid by hand: kernels in the order of their launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfdoc.analyzers.kernels.attributed import attributed_kernels
from perfdoc.analyzers.work.kernels import kernel_work
from perfdoc.analyzers.work.operator_work import KernelWork
from perfdoc.profiling.manifest import ModelShape
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.device_views import view_of
from tests.captures.timeline import TimelineBuilder

GEMM = "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
SMALL_GEMM = "nvjet_tst_64x64_64x4_1x2_h_bz_coopA_NNT"
SPLIT_K = "cublasLt::splitKreduce_kernel"
FLASH = "flash_fwd_kernel"
FLASH_BACKWARD = "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
SOFTMAX = "softmax_warp_forward"
ADD = "vectorized_elementwise_kernel"

SHAPE = ModelShape(
    name="planted",
    layers=2,
    hidden_size=8,
    ffn_hidden_size=24,
    attention_heads=4,
    query_groups=2,
    kv_channels=4,
    vocabulary=32,
    sequence_length=10,
    gated_mlp=False,
)
"""Heads are 16 wide together, keys and values 8 each."""
TOKENS = 30
FACTS = JobFacts(
    model=SHAPE, sequence_length=10, micro_batch_sequences=3, tp=1, cp=1, pp=1, dp=1, dtype="bf16"
)


def facts(**given: Any) -> JobFacts:
    """FACTS, with some of its own fields or of the model's in place."""
    of_model = {k: given.pop(k) for k in list(given) if k in ModelShape.__struct_fields__}
    values = {**vars(FACTS), **given}
    if of_model:
        values["model"] = msgspec.structs.replace(SHAPE, **of_model)
    return JobFacts(**values)


class ModelPlan:
    """One rank. Each kernel is launched after the one before it, and runs after it."""

    def __init__(self) -> None:
        self.builder = TimelineBuilder()
        process = self.builder.process()
        self.main, self.autograd = process.thread(), process.thread()
        self.device = process.device()
        self.host_ns, self.device_ns = 1_000, 10_000
        self.on_autograd = False

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A range around what is launched inside."""
        begin, thread = self.host_ns, self.autograd if self.on_autograd else self.main
        self.host_ns += 10
        yield
        self.host_ns += 10
        thread.range(name, begin, self.host_ns)
        self.host_ns += 10

    def run(self, *names: str, ns: Sequence[int] = (), blocks: Sequence[int] = (), stream: int = 7) -> None:
        """Launch kernels; each takes 1,000 ns and has 132 thread blocks."""
        thread = self.autograd if self.on_autograd else self.main
        for i, name in enumerate(names):
            length = ns[i] if ns else 1_000
            launch = (thread, self.host_ns, self.host_ns + 5)
            grid = (blocks[i] if blocks else 132, 1, 1)
            end_ns = self.device_ns + length
            self.device.kernel(
                name, self.device_ns, end_ns, stream=stream, full_name=name, grid=grid, launch=launch
            )
            self.host_ns += 10
            self.device_ns += length + 10

    def work(self, folder: Path, facts: JobFacts = FACTS) -> KernelWork:
        """Of all kernels, in the order of their launches."""
        view = view_of(self.builder, folder, facts)
        kernels = attributed_kernels(view)
        assert kernels is not None
        return kernel_work(view, kernels.rows, kernels)


def named(work: KernelWork) -> list[str]:
    """The operator of each kernel; empty where its work is unknown."""
    return [work.operators[i].name if i >= 0 else "" for i in work.operator.tolist()]


def flops(work: KernelWork) -> list[int]:
    """Of each kernel; -1 unknown."""
    return [-1 if np.isnan(x) else round(x) for x in work.flops.tolist()]
