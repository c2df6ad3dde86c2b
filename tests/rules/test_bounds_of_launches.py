"""No upper bound is below what goes where the host is late: kernels that go take their launches with them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from perfdoc.rules.engine.case import Case
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import TimelineBuilder
from tests.rules.cases import US, case_of, gain_of, result
from tests.rules.laid import CAST, FILL, H100, MUL, SILU, SOFTMAX, given

COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(x)::y>(z)"


class Op(NamedTuple):
    """What the host runs for `host_us`, at whose end it launches this kernel."""

    name: str
    us: int
    host_us: int = 20


def run(ops: Sequence[Op], steps: int = 2) -> tuple[TimelineBuilder, int]:
    """(the capture of steps of these, which the host launches one by one; how long a step takes). A kernel
    starts once it is launched and the one before has ended, and the host reads the loss at a step's end."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device(gpu_name=H100)
    host = ready = 0
    for i in range(steps):
        begin = host
        for name, us, host_us in ops:
            call = host + host_us * US
            start = max(ready, call + US)
            ready, host = start + us * US, call + US
            device.kernel(name.split("<")[0], start, ready, full_name=name, launch=(thread, call, host))
        host = max(host, ready + US)
        thread.range(f"perfdoc.step {i}", begin, host)
    return builder, host // steps


def saved_ms(ops: Sequence[Op], fewer: Sequence[Op]) -> float:
    return (run(ops)[1] - run(fewer)[1]) / 1e6


def bound_ms(code: str, folder: Path, ops: Sequence[Op], of: Callable[[Case], Case] = given) -> float:
    found = gain_of(result(code, of(case_of(folder, run(ops)[0]))))
    assert found.method == "ceiling"
    return found.high_ms or 0.0


LINEAR = Op(GEMM, 10)
CASES = {
    "a gated activation": ("PD404", [LINEAR, Op(SILU, 4), Op(MUL, 3)], [LINEAR, Op(SILU, 4)]),
    "launches that take longer than others": (
        "PD404",
        [LINEAR, Op(SILU, 4), Op(MUL, 3, host_us=60)],
        [LINEAR, Op(SILU, 4)],
    ),
    "attention": (
        "PD405",
        [LINEAR, Op(MUL, 3), Op(SOFTMAX, 8), LINEAR, Op(FILL, 2)],
        [Op(FILL, 5), Op(FILL, 2)],
    ),
    "copies": ("PD413", [LINEAR, Op(COPY, 5)], [LINEAR]),
    "casts": ("PD403", [LINEAR, Op(CAST, 4)], [LINEAR]),
}
"""(the rule, a layer, the same without what it finds)."""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_launches_go_with_their_kernels(name: str, late: bool, tmp_path: Path) -> None:
    """Of a host that launches each 21 us, and of one that is ahead, where kernels alone go."""
    code, layer, without = CASES[name]
    first = [] if late else [Op(GEMM, 500)]
    ops, fewer = (
        [*first, *(op if late else op._replace(host_us=1) for op in layers * 20)]
        for layers in (layer, without)
    )
    saved, bound = saved_ms(ops, fewer), bound_ms(code, tmp_path, ops, lambda case: given(case, fp8="hybrid"))
    assert saved > 0
    assert saved <= bound
    if late:
        assert bound < 2.5 * saved, "far from the truth"
