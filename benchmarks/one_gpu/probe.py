"""What one GPU shows of kernels alone: FP8, CUDA graphs, fusion, and SMs taken by another kernel.

    python3 probe.py OUT.json

Times are medians in ms, by CUDA events; a part that fails is told and ends no other.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

GEMMS = ((8192, 8192, 8192), (4096, 28672, 4096), (4096, 4096, 14336), (8192, 6144, 4096))
"""M x N x K; the last three are of an 8B layer: first and second matrix of the MLP, and the projections."""
MARGINS = (0, 8, 16, 32)
CTAS = (8, 16, 24, 32)
"""Blocks of the kernel that stands for a collective: a ring of NCCL has as many as it has channels."""
ROWS, WIDTH = 16384, 4096
COPIED = 64 << 20
"""Elements of fp32, far beyond the caches."""
COPIES = 100
"""So that the copy outlasts what is timed beside it: by 32 blocks it takes 60 ms, nine of the GEMMs 30."""
WAVE = 8
"""Pieces of work timed beside one copy."""


def timed(work: Callable[[], object], times: int = 20, warm: int = 3) -> float:
    """The median of one piece of work, ms."""
    for _ in range(warm):
        work()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Random numbers: zeros are multiplied with less power, and faster."""
    return torch.randn(*shape, device="cuda", dtype=dtype)


def fp8() -> dict[str, Any]:
    """GEMMs in FP8 against bf16, and what turning one operand into FP8 costs beside it."""
    found = {}
    one = torch.ones((), device="cuda")
    for m, n, k in GEMMS:
        a, b = randn(m, k), randn(n, k)
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        given = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
        bf16_ms = timed(lambda a=a, b=b: a @ b.t())
        found[f"{m} x {n} x {k}"] = {
            "bf16_ms": bf16_ms,
            "bf16_tflops": 2e-9 * m * n * k / bf16_ms,
            "fp8_ms": timed(lambda a8=a8, b8=b8, given=given: torch._scaled_mm(a8, b8.t(), **given)),
            "amax_ms": timed(lambda a=a: a.abs().amax()),
            "cast_ms": timed(lambda a=a: a.to(torch.float8_e4m3fn)),
        }
    return found


def graphs() -> dict[str, float]:
    """Forward and backward of many small kernels, launched one by one and as one graph; wall time."""
    layers = torch.nn.Sequential(
        *(
            torch.nn.Sequential(
                torch.nn.RMSNorm(512), torch.nn.Linear(512, 2048), torch.nn.SiLU(), torch.nn.Linear(2048, 512)
            )
            for _ in range(24)
        )
    )
    layers = layers.cuda().bfloat16()
    given = randn(256, 512)

    def step() -> None:
        for parameter in layers.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        layers(given).square().mean().backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return {"eager_ms": wall_ms(step), "graph_ms": wall_ms(graph.replay)}


def wall_ms(work: Callable[[], object], times: int = 30) -> float:
    """The mean of one piece of work by the host's clock."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times * 1e3


def fusion() -> dict[str, float]:
    """SwiGLU as PyTorch runs it, kernel by kernel, and compiled into one."""
    given = randn(8192, 28672)

    def swiglu(both: torch.Tensor) -> torch.Tensor:
        half = both.shape[1] // 2
        return torch.nn.functional.silu(both[:, :half]) * both[:, half:]

    compiled = torch.compile(swiglu)
    return {"unfused_ms": timed(lambda: swiglu(given)), "compiled_ms": timed(lambda: compiled(given))}


def contention() -> dict[str, Any]:
    """What a kernel of few long-lived blocks costs others beside it, and what an SM margin gives back.

    The copy stands for a ring's kernel. A GEMM and an element-wise kernel are cut into as many blocks as they
    have work; a persistent norm runs on as many as it is given: all SMs, or all less a margin.
    """
    from kernels import copy_persistent, rms_norm_persistent

    sms = torch.cuda.get_device_properties(0).multi_processor_count
    source = randn(COPIED, dtype=torch.float32)
    target = torch.empty_like(source)
    a, b, x = randn(8192, 4096), randn(4096, 28672), randn(ROWS, WIDTH)
    weight, out = torch.ones(WIDTH, device="cuda"), torch.empty_like(x)

    def norm(blocks: int) -> Callable[[], object]:
        return lambda: rms_norm_persistent[(blocks,)](x, weight, out, ROWS, WIDTH=WIDTH, num_warps=8)

    works: dict[str, Callable[[], object]] = {
        "gemm": lambda: torch.mm(a, b),
        "add": lambda: torch.add(x, x, out=out),
        **{f"norm, margin {margin}": norm(sms - margin) for margin in MARGINS},
    }
    found: dict[str, Any] = {name: {"alone_ms": timed(work)} for name, work in works.items()}

    def copy(blocks: int) -> None:
        copy_persistent[(blocks,)](source, target, COPIED, COPIES, SIZE=4096, num_warps=16)

    copy(CTAS[0])  # compiles it: between the events below that would count as copying
    side = torch.cuda.Stream()
    for blocks in CTAS:
        for name, work in works.items():
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                copy(blocks)
                end.record()
            beside_ms = timed(work, times=WAVE, warm=1)
            torch.cuda.synchronize()
            found[name][f"beside {blocks}"] = {
                "ms": beside_ms,
                "copy_ms": begin.elapsed_time(end),
                # Work that outlasted the copy was not beside it.
                "covered": begin.elapsed_time(end) > beside_ms * (WAVE + 1),
            }
    return found


def main() -> int:
    """All parts; 1 where one failed."""
    found: dict[str, Any] = {}
    for part in (fp8, graphs, fusion, contention):
        begin = time.monotonic()
        try:
            found[part.__name__] = part()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts are still to be seen
            found[part.__name__] = {"failed": f"{type(error).__name__}: {error}"[:400]}
        found[part.__name__]["took_s"] = round(time.monotonic() - begin, 1)
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    failed = [name for name, each in found.items() if "failed" in each]
    if failed:
        sys.stderr.write(f"probe: {failed[0]}: {found[failed[0]]['failed']}\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
