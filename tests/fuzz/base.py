"""The capture that inputs are made from: two ranks of a small job with something of everything in it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.captures.events import Collective, NcclPayload
from tests.captures.timeline import Timeline, TimelineBuilder

SHARED_TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
"""Real ones, which lie beside the repository; not part of it."""
GEMM = "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"
NORM = "rmsnorm_fwd_tuned_kernel"
ADAM = "multi_tensor_apply_kernel"
REDUCE = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"
GATHER = "ncclDevKernel_AllGather_RING_LL"
SEND = "ncclDevKernel_SendRecv"
NAMES = {GEMM: False, NORM: False, ADAM: False, REDUCE: True, GATHER: True, SEND: True}
"""Names of its kernels, and whether they are communication."""
RANKS = 2
_COMMUNICATOR = 0x9E3779B97F4A7C15


@cache
def timeline(rank: int) -> Timeline:
    """Two steps of a rank on a file of its own: communication that is hidden or exposed, a copy, waits."""
    t = TimelineBuilder(utc_origin_ns=1_700_000_000_000_000_000 + 1_000 * rank)
    process = t.process(pid=1000 + rank, rank=rank)
    process.group("1", "DATA_PARALLEL_GROUP", (0, 1))
    main, backward = process.thread(name="main"), process.thread(name="autograd")
    gpu = process.device(ordinal=rank)
    for step in range(2):
        at = 100_000 * step + 500
        main.range(f"perfdoc.step {step}", at - 400, at + 98_000)
        main.range("forward", at, at + 20_000)
        backward.range("backward", at + 20_000, at + 60_000)
        process.operator(main, "aten::linear", at, at + 900)
        gpu.copy("host_to_device", 4096, at + 1_000, at + 2_000, launch=(main, at + 10, at + 20))
        for i in range(4):
            begin = at + 3_000 + 8_000 * i
            gpu.kernel(GEMM, begin, begin + 6_000, launch=(main, begin - 2_500, begin - 2_400))
            gpu.kernel(NORM, begin + 6_100, begin + 7_000, launch=(main, begin - 2_300, begin - 2_200))
        for i, (name, call, operation) in enumerate(
            (
                (GATHER, "ncclAllGather", "_allgather_base"),
                (REDUCE, "ncclReduceScatter", "_reduce_scatter_base"),
            )
        ):
            begin = at + 30_000 + 12_000 * i
            main.range(
                call,
                begin - 1_000,
                begin - 800,
                domain="NCCL",
                payload=NcclPayload(communicator=_COMMUNICATOR, bytes=1 << 20, ranks=2, rank=rank),
            )
            gpu.kernel(
                name,
                begin + 300 * rank,
                begin + 10_000,
                stream=20,
                launch=(main, begin - 900, begin - 850),
                collective=Collective(
                    operation=operation,
                    group_name="1",
                    group_description="DATA_PARALLEL_GROUP",
                    ranks=(0, 1),
                    dtype="BFloat16",
                    in_elements=1 << 19,
                    out_elements=1 << 18,
                    sequence=2 * step + i,
                ),
            )
        record = gpu.record_event(20, launch=(main, at + 50_000, at + 50_100))
        gpu.wait_event(7, record, launch=(main, at + 50_200, at + 50_300))
        gpu.kernel(SEND, at + 56_000, at + 57_000, stream=24, launch=(main, at + 51_000, at + 51_100))
        gpu.kernel(ADAM, at + 70_000, at + 80_000, launch=(main, at + 60_000, at + 60_100))
        gpu.memset(64, at + 80_100, at + 80_200, launch=(main, at + 60_200, at + 60_300))
        main.synchronize("device", at + 61_000, at + 80_300, device=gpu)
        main.off_cpu(at + 61_100, at + 80_000)
        main.os_call("poll", at + 85_000, at + 86_000)
    return t.build()


@cache
def content(folder: Path, kind: str, rank: int, generation: str) -> bytes:
    """A capture of the rank as a file, made once in the folder."""
    from tests.captures.kineto import write_kineto
    from tests.captures.nsys_sqlite import write_nsys_sqlite

    path = folder / f"{rank}-{generation}.{kind}"
    if kind == "sqlite":
        write_nsys_sqlite(timeline(rank), path, generation=generation, force=True)
    else:
        write_kineto(timeline(rank), path, 1000 + rank, old_categories=generation == "old", force=True)
    return path.read_bytes()
