"""PD209: host time in packing what is sent, told by PyTorch's own operators."""

from pathlib import Path

import pytest

from perfdoc.rules.engine.case import Case
from tests.analyzers.tiny import GEMM
from tests.rules.cases import US, case_of, gain_of, result, two_steps
from tests.rules.examples import example


def packing(folder: Path, unpack_us: int, copies_us: int = 0, forward: str = "") -> Case:
    """Steps of 1 ms, the device at work in [0, 300), [320, 324) and [900, 1000). The host flattens in
    [310, 330), from where the second kernel comes, and takes apart again for so long from 400 on, in a range
    of that name; from 600 on it copies gradients out of buckets."""
    builder, thread, device, steps = two_steps()
    for at, end in steps:

        def during(name: str, begin_us: int, end_us: int, at: int = at) -> None:
            thread.range(name, at + begin_us * US, at + end_us * US)

        device.kernel(GEMM, at, at + 300 * US, launch=(thread, at, at + 1))
        if forward:
            during(forward, 305, 590)
        during("aten::flatten_dense_tensors", 310, 330)
        device.kernel(GEMM, at + 320 * US, at + 324 * US, launch=(thread, at + 312 * US, at + 313 * US))
        during("aten::unflatten_dense_tensors", 400, 400 + unpack_us)
        if copies_us:
            during("torch.distributed.ddp.reducer::copy_bucket_to_grad", 600, 600 + copies_us)
        device.kernel(GEMM, at + 900 * US, end, launch=(thread, at + 899 * US, at + 900 * US))
    return case_of(folder, builder)


@example("PD209")
def buffers_of_ddp(folder: Path) -> Case:
    """Steps of 1 ms: inside DistributedDataParallel.forward the host flattens the module's buffers for 20 µs
    and takes them apart for 100, while the device idles."""
    return packing(folder, 100, forward="DistributedDataParallel.forward")


def test_ddps_buffers_are_named(tmp_path: Path) -> None:
    found = result("PD209", buffers_of_ddp(tmp_path))
    assert (found.state, found.level) == ("fires", "problem")
    assert "broadcast_buffers=False" in found.remedy
    assert "gradient_as_bucket_view" not in found.remedy
    values = {e.label: e.value for e in found.evidence}
    # Idle in [310, 313), until the second kernel is launched, [324, 330) and [400, 500): 109 of 1,000 us.
    assert values["idle while the host packs, mean over ranks"] == "10.9 %"
    # The host is in them for 120 us, and what they launch takes 4.
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.124))


@pytest.mark.parametrize(
    ("copies_us", "saved_ms"),
    [(20, 0.140), (19, None)],  # 2 % of the step is the least that is named
)
def test_gradients_copied_out_of_buckets(tmp_path: Path, copies_us: int, saved_ms: float | None) -> None:
    made = packing(tmp_path, 96, copies_us, "DistributedDataParallel.forward")
    found = result("PD209", made)
    assert ("gradient_as_bucket_view" in found.remedy) == (saved_ms is not None)
    # 116 us in the broadcast and 4 on the device; the copies' 20 only where they are named.
    assert gain_of(found).high_ms == pytest.approx(saved_ms or 0.120)


@pytest.mark.parametrize(("unpack_us", "state"), [(11, "fires"), (10, "passes")])
def test_what_a_program_flattens_itself(tmp_path: Path, unpack_us: int, state: str) -> None:
    """9 us of idle time in the first, and all of the second: 20 of 1,000 us are the least."""
    found = result("PD209", packing(tmp_path, unpack_us))
    assert (found.state, "broadcast_buffers" in found.remedy) == (state, False)
    assert ("flat buffer" in found.remedy) == (state == "fires")


def test_a_capture_without_such_operators(tmp_path: Path) -> None:
    builder, thread, device, steps = two_steps()
    for at, end in steps:
        thread.range("aten::flatten", at, at + 500 * US)
        device.kernel(GEMM, at + 600 * US, end, launch=(thread, at + 599 * US, at + 600 * US))
    assert result("PD209", case_of(tmp_path, builder)).state == "not_applicable"
