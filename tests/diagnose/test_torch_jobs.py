"""Jobs that PyTorch's profiler traces: what makes each step long is not what it looks like."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.results import Diagnosis
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.device import DeviceBuilder
from tests.captures.events import Collective
from tests.captures.kineto import write_kineto
from tests.captures.process import ProcessBuilder, ThreadBuilder
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.diagnose.test_not_training import words_of

US = 1_000
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(x)"
LOOKUP = "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, unsigned long>(x)"
GATHER, SCATTER = (
    f"ncclDevKernel_{of}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    for of in ("AllGather", "ReduceScatter_Sum_bf16")
)


def said_of(builder: TimelineBuilder, folder: Path, ranks: int = 1) -> Diagnosis:
    built = builder.build()
    files = [write_kineto(built, folder / f"rank{i}.json", 1000 + i) for i in range(ranks)]
    return analysed(AnalysisRequest(captures=tuple(files), jobs=1)).diagnosis


@pytest.mark.parametrize("blocks", [True, False])
def test_launches_that_wait_for_their_kernels_want_no_graphs(blocks: bool, tmp_path: Path) -> None:
    """Six steps of 40 GEMMs of 60 us, each launched 20 us behind the one before: 800 of 3,200 us are idle."""
    builder, thread, device = one_gpu()
    at = 1_000 * US
    for step in range(6):
        begin = at
        for _ in range(40):
            device.kernel(
                GEMM, at + 5 * US, at + 65 * US, launch=(thread, at, at + (67 if blocks else 4) * US)
            )
            at += 80 * US
        thread.range(f"ProfilerStep#{step}", begin, at - US)
    said = said_of(builder, tmp_path)
    assert said.verdict.startswith("Each launch waits for its kernel, as with") == blocks
    assert ("Unset CUDA_LAUNCH_BLOCKING" in words_of(said)) == blocks


def test_slow_launches_are_not_blocking(tmp_path: Path) -> None:
    """Launches of 60 us, whose kernels of 25 us begin 15 us after them: a call that returns late waits for
    something else, as under a tracer or a lock."""
    builder, thread, device = one_gpu()
    at = 1_000 * US
    for step in range(6):
        begin = at
        for _ in range(40):
            device.kernel(GEMM, at + 15 * US, at + 40 * US, launch=(thread, at, at + 60 * US))
            at += 70 * US
        thread.range(f"ProfilerStep#{step}", begin, at - US)
    assert "BLOCKING" not in words_of(said_of(builder, tmp_path))


Part = tuple[ProcessBuilder, ThreadBuilder, DeviceBuilder]


def two_ranks() -> tuple[TimelineBuilder, list[Part]]:
    builder, parts = TimelineBuilder(), []
    for rank in range(2):
        process = builder.process(pid=1000 + rank, rank=rank)
        parts.append((process, process.thread(), process.device(rank)))
    return builder, parts


def summed(
    part: Part, at: int, us: int, mib: int, operation: str = "allreduce", name: str = ALL_REDUCE
) -> int:
    """A collective of both ranks, launched inside autograd's node as DDP does; its end."""
    process, thread, device = part
    parts = {"_allgather_base": 2, "_reduce_scatter_base": 1}
    into = mib * (1 << 18) * parts.get(operation, 1)
    of = Collective(
        operation=operation,
        group_name="0",
        group_description="mesh_dp",
        ranks=(0, 1),
        dtype="Float",
        in_elements=mib * (1 << 18),
        out_elements=into,
    )
    thread.range("nccl:all_reduce", at, at + 9 * US)
    process.operator(
        thread, "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at - US, at + 10 * US
    )
    device.kernel(
        name, at + 9 * US, at + us * US, stream=20, launch=(thread, at + US, at + 8 * US), collective=of
    )
    return at + us * US


@pytest.mark.parametrize("syncs", [True, False])
def test_gradients_of_each_micro_batch_are_reduced_once_too_often(syncs: bool, tmp_path: Path) -> None:
    """Six steps of four micro-batches of 500 us; gradients are reduced for 400 us behind each, or
    behind the last."""
    builder, parts = two_ranks()
    for part in parts:
        _, thread, device = part
        at = 1_000 * US
        for step in range(6):
            begin = at
            for micro_batch in range(4):
                thread.range("DistributedDataParallel.forward", at, at + 20 * US)
                device.kernel(GEMM, at + 10 * US, at + 500 * US, launch=(thread, at + US, at + 5 * US))
                at += 500 * US
                if syncs or micro_batch == 3:
                    at = summed(part, at, 400, 25)
            thread.range("Optimizer.step#AdamW.step", at, at + 9 * US)
            device.kernel(ADAM, at + 9 * US, at + 50 * US, launch=(thread, at + US, at + 5 * US))
            at += 60 * US
            thread.range(f"ProfilerStep#{step}", begin, at - US)
    words = words_of(said_of(builder, tmp_path, 2))
    told = "4 times for each step of the optimizer: no_sync() on all micro-batches but the last sends 1/4"
    assert (told in " ".join(words.split())) == syncs


@pytest.mark.parametrize(("every", "us"), [(4, 4_000), (1, 4_000), (1, 200)])
def test_weights_averaged_every_few_steps_are_not_wrapped_in_ddp(every: int, us: int, tmp_path: Path) -> None:
    """Twelve steps of 1 ms, each with its update; one in four averages weights for 4 ms, which
    DDP would reduce in each. Where each sums gradients, the last may take longer for once."""
    builder, parts = two_ranks()
    for part in parts:
        process, thread, device = part
        at = 1_000 * US
        for step in range(12):
            begin = at
            device.kernel(GEMM, at + 10 * US, at + 900 * US, launch=(thread, at + US, at + 5 * US))
            at += 900 * US
            process.operator(
                thread, "autograd::engine::evaluate_function: MmBackward0", begin, begin + 9 * US
            )
            device.kernel(ADAM, at + 10 * US, at + 90 * US, launch=(thread, at + US, at + 5 * US))
            at += 100 * US
            if step % every == every - 1:
                at = summed(part, at, us if step < 11 else 4_000, 200)
            thread.range(f"ProfilerStep#{step}", begin, at - US)
    words = " ".join(words_of(said_of(builder, tmp_path, 2)).split())
    assert ("3 of 12 steps reduce" in words) == (every == 4)
    assert ("DistributedDataParallel(model)" in words) == (every == 1)


@pytest.mark.parametrize(("gathers_us", "sums_us"), [(100, 900), (250, 100)])
def test_sums_over_replicas_of_shards_are_not_gathered_less(
    gathers_us: int, sums_us: int, tmp_path: Path
) -> None:
    """Six steps: weights are gathered twice, gradients reduced to shards for 100 us and summed over replicas.
    What takes longest is told: not gathering twice saves nothing of a sum."""
    builder, parts = two_ranks()
    for part in parts:
        _, thread, device = part
        at = 1_000 * US
        for step in range(6):
            begin = at
            thread.range("FSDP::pre_forward", at, at + 5 * US)
            for _ in range(2):
                at = summed(part, at, gathers_us, 16, "_allgather_base", GATHER)
                device.kernel(GEMM, at + 10 * US, at + 400 * US, launch=(thread, at + US, at + 5 * US))
                at += 400 * US
            hidden = at + (100 + sums_us) // (1 + (sums_us > 100)) * US
            device.kernel(GEMM, at + 10 * US, hidden, launch=(thread, at - 5 * US, at - 2 * US))
            at = summed(part, at, 100, 16, "_reduce_scatter_base", SCATTER)
            at = summed(part, at, sums_us, 16)
            thread.range(f"ProfilerStep#{step}", begin, at - US)
    words = " ".join(words_of(said_of(builder, tmp_path, 2)).split())
    assert ("larger groups of shards send less" in words) == (sums_us > gathers_us)
    assert ("Weights are gathered twice" in words) == (sums_us < gathers_us)


def test_a_rank_whose_lookups_take_longer_has_other_tables(tmp_path: Path) -> None:
    """Eight steps: 500 us of lookups, on the second rank 1,000, an all-to-all, 500 us of GEMM."""
    builder, parts = two_ranks()
    for rank, part in enumerate(parts):
        _, thread, device = part
        at = 1_000 * US
        for step in range(8):
            begin, own = at, at + (500 + 500 * rank) * US
            device.kernel(LOOKUP, at + 10 * US, own, launch=(thread, at + US, at + 5 * US))
            of = Collective(
                operation="all_to_allv", group_name="0", group_description="default_pg", ranks=(0, 1)
            )
            end = at + 1_100 * US
            device.kernel(
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                *(own + US, end),
                stream=20,
                launch=(thread, at + 6 * US, at + 9 * US),
                collective=of,
            )
            device.kernel(GEMM, end + US, end + 500 * US, launch=(thread, at + 10 * US, at + 12 * US))
            at = end + 510 * US
            thread.range(f"ProfilerStep#{step}", begin, at - US)
    words = " ".join(words_of(said_of(builder, tmp_path, 2)).split())
    assert "lookups in tables: compare which tables, or rows of them, its shard holds" in words
    assert "sequences" not in words
