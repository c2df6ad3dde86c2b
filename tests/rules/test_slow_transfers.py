"""Ranks whose transfers take longer than the others' for as many bytes are named (PD103)."""

from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.rules.engine.case import Case
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.events import NcclPayload
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import US, case_of, gain_of, result

SUMS = "all-grads-sync"


def builders_of(
    second_us: int, late_us: int = 0, second_bytes: int = 1 << 24, around: str = SUMS
) -> list[TimelineBuilder]:
    """Steps of four ranks, 600 us of compute, then an all-reduce of ranks 0 and 1, 100 us, and one of ranks 2
    and 3. late_us: so much later is rank 3. around: range of the call, which says of what dimension it is."""
    builders = []
    for rank in range(4):
        builder, thread, device = one_gpu(pid=1000 + rank, rank=rank)
        group = rank // 2
        own = 600 + (late_us if rank == 3 else 0)
        come, takes = 600 + group * late_us, second_us if group else 100
        for step in range(6):
            at = (1_000 + step * 2_000) * US
            thread.range(f"perfdoc.step {step}", at, at + 2_000 * US)
            device.kernel(GEMM, at + 10 * US, at + (10 + own) * US, launch=(thread, at, at + 3 * US))
            thread.range(around, at + 4 * US, at + 9 * US)
            payload = NcclPayload(
                communicator=7 + group, bytes=second_bytes if group else 1 << 24, ranks=2, rank=rank % 2
            )
            thread.range("ncclAllReduce", at + 5 * US, at + 8 * US, domain="NCCL", payload=payload)
            end = at + (20 + come + takes) * US
            launch = (thread, at + 6 * US, at + 7 * US)
            device.kernel(ALL_REDUCE, at + (20 + own) * US, end, stream=20, launch=launch)
        builders.append(builder)
    return builders


def two_groups(folder: Path, second_us: int, *, late_us: int = 0, second_bytes: int = 1 << 24) -> Case:
    return case_of(folder, *builders_of(second_us, late_us, second_bytes))


@pytest.mark.parametrize(("second_us", "leads"), [(300, False), (600, False), (700, True)])
def test_the_group_with_the_slow_link_is_named(second_us: int, leads: bool, tmp_path: Path) -> None:
    """500 us in place of 100: without that 400 less on two of the ranks, and so much a step at most. The GPUs
    wait for the hosts for about 1,000 us: what costs less than half of that is not said first."""
    found = result("PD103", two_groups(tmp_path, second_us))
    assert f"GPU 0, pid 1002 and GPU 0, pid 1003 take {second_us // 100} times as long" in found.reason
    assert gain_of(found).high_ms == pytest.approx((second_us - 100) / 1_000)
    assert bool(found.blames) is leads
    assert "span servers" in found.remedy


def test_a_group_of_tensor_parallelism_with_a_slow_link_is_named(tmp_path: Path) -> None:
    """900 us in place of 100, in the only communication that there is: 800 less a step at most."""
    found = result("PD103", case_of(tmp_path, *builders_of(900, around="tp_all_reduce")))
    assert "TP transfers of GPU 0, pid 1002 and GPU 0, pid 1003 take 9 times as long" in found.blames
    assert gain_of(found).high_ms == pytest.approx(0.8)


def test_what_the_replay_predicts_of_a_link_is_not_said_twice(tmp_path: Path) -> None:
    """1,000 us in place of 100: 900 less a step, which the replay of operations tells exactly."""
    paths = [write_nsys_sqlite(b.build(), tmp_path / f"{i}.sqlite") for i, b in enumerate(builders_of(1_000))]
    said = analysed(AnalysisRequest(captures=tuple(paths), jobs=1)).diagnosis
    rules = {rule.code: rule for rule in said.rules}
    assert gain_of(rules["PD303"]).mid_ms == pytest.approx(0.9, rel=0.05)
    assert "span servers" in rules["PD303"].remedy
    assert "as long as the others" not in rules["PD103"].reason
    assert "links' bandwidth" in rules["PD103"].reason


@pytest.mark.parametrize(
    ("second_us", "late_us", "second_bytes"), [(100, 400, 1 << 24), (190, 0, 1 << 24), (500, 0, 1 << 26)]
)
def test_nobody_is_named_who_waits_or_sends_more(
    second_us: int, late_us: int, second_bytes: int, tmp_path: Path
) -> None:
    """Half of the ranks are late, take less than twice as long, or send four times as many bytes."""
    case = two_groups(tmp_path, second_us, late_us=late_us, second_bytes=second_bytes)
    assert "as long as the others" not in result("PD103", case).reason
