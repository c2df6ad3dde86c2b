"""PD104: one reduction for each parameter, told by the weights' broadcasts or by number and size."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.communication.table import BOUNDS_BYTES
from perfdoc.results.ranks import MessageSizes
from perfdoc.rules.engine.case import Case
from tests.rules.cases import case_of, gain_of, result, step_with_communication
from tests.rules.communicating import with_rows
from tests.rules.examples import example
from tests.rules.laid import starting_up
from tests.rules.test_plain_pytorch import shown_by

MIB = 1 << 20


def of_size(count: int, each: float) -> MessageSizes:
    most = next((most for most in BOUNDS_BYTES if each <= most), None)
    return MessageSizes(most_bytes=most, count=count, exposed_ns=1000)


def reducing(
    folder: Path,
    *,
    count: int,
    mib: float,
    broadcasts: int = 0,
    sent_mib: float = 0,
    exposed_us: int = 200,
    name: str = "all-grads-sync",
) -> Case:
    """Two steps of 1 ms, so much of each exposed and 100 us hidden: both together so many all-reduces of so
    many MiB in sum, and broadcasts in the same group."""
    case = with_rows(
        case_of(folder, step_with_communication(exposed_us, name=name)),
        count=count,
        bytes=round(mib * MIB),
        sizes=[of_size(count, mib * MIB / count)],
        group="0x1",
    )
    if not broadcasts:
        return case
    ranks = []
    for rank in case.ranks:
        (row,) = rank.communication
        sent = replace(row, collective="broadcast", count=broadcasts, bytes=round(sent_mib * MIB))
        ranks.append(replace(rank, communication=[row, sent]))
    return replace(case, captures=[replace(case.captures[0], ranks=ranks)])


@example("PD104")
def one_a_parameter(folder: Path) -> Case:
    """Steps of 1 ms that end with 100 all-reduces of 2 MiB each, 200 µs of 300 beside no compute."""
    return reducing(folder, count=200, mib=400)


@pytest.mark.parametrize(
    ("count", "mib", "state"),
    [
        (100, 400, "fires"),  # of both steps: 50 a step, 200 MiB, which 8 buckets of 25 MiB take
        (98, 400, "passes"),  # 49 a step
        (200, 1252, "passes"),  # 100 a step where 26 buckets would be
        (200, 1250, "fires"),  # 100 a step where 25 would be
        (200, 8, "fires"),
        (200, 7.9, "passes"),  # under 4 MiB a step: metrics
    ],
)
def test_number_and_size_tell_in_steps(tmp_path: Path, count: int, mib: float, state: str) -> None:
    found = result("PD104", reducing(tmp_path, count=count, mib=mib))
    assert found.state == state
    if state == "fires":
        assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.2))


def test_broadcasts_of_weights_tell_without_steps(tmp_path: Path) -> None:
    """24 parameters: fewer than number alone would tell, and no step is known."""
    made = reducing(tmp_path, count=24, mib=32, broadcasts=24, sent_mib=64)
    found = result("PD104", starting_up(made))
    assert found.state == "fires"
    assert "24 reductions for 24 parameters" in found.reason
    assert "2 buckets" in found.reason
    # The window is start-up: its cost is told, nothing is promised.
    assert found.gain is None
    values = {e.label: e.value for e in found.evidence}
    assert values["of it exposed"] == "400 µs"
    # Without the broadcasts, or with other numbers of them or of bytes, nothing is known.
    for other in (
        reducing(tmp_path, count=24, mib=32),
        reducing(tmp_path, count=24, mib=32, broadcasts=23, sent_mib=64),
        reducing(tmp_path, count=24, mib=32, broadcasts=24, sent_mib=60),
    ):
        assert result("PD104", starting_up(other)).state == "passes"


def test_start_up_excuses_no_small_share_and_steps_do(tmp_path: Path) -> None:
    made = reducing(tmp_path, count=200, mib=400, exposed_us=49, broadcasts=100, sent_mib=200)
    # 49 of 1,000 us, and less than half of 149 us of communication.
    assert result("PD104", made).state == "passes"
    most = with_rows(made, hidden_ns=1, total_ns=98_001)
    assert (result("PD104", most).state, result("PD104", starting_up(most)).state) == ("passes", "fires")


def test_other_communication_is_not_gradients(tmp_path: Path) -> None:
    assert result("PD104", reducing(tmp_path, count=200, mib=400, name="")).state == "passes"
    tensor = result("PD104", reducing(tmp_path, count=200, mib=400, name="tp comm"))
    assert tensor.state == "not_applicable"
    counts = with_rows(reducing(tmp_path, count=200, mib=400), element_type="int64")
    assert result("PD104", counts).state == "not_applicable"


def test_words_are_of_the_jobs_framework(tmp_path: Path) -> None:
    made = reducing(tmp_path, count=200, mib=400)
    assert "bucket_size" in result("PD104", shown_by(made, "megatron", {})).remedy
    plain = result("PD104", shown_by(made, "pytorch", {}))
    assert ("bucket_cap_mb" in plain.remedy, "bucket_size" in plain.remedy) == (True, False)


@pytest.mark.parametrize(
    ("small", "large", "state"),
    [
        ((60, 4096), (4, 25 * MIB), "passes"),  # statistics beside buckets
        ((60, MIB // 2), (4, 25 * MIB), "passes"),
        ((60, 4096), (8, 15 * MIB), "passes"),
        ((60, 4096), (50, 2 * MIB), "fires"),  # biases beside weights
        ((60, 4096), (49, 2 * MIB), "passes"),
    ],
)
def test_small_reductions_beside_buckets_do_not_count(
    tmp_path: Path, small: tuple[int, int], large: tuple[int, int], state: str
) -> None:
    """In each of two steps."""
    total = 2 * sum(count * each for count, each in (small, large))
    made = reducing(tmp_path, count=2 * (small[0] + large[0]), mib=total / MIB)
    made = with_rows(made, sizes=[of_size(2 * count, each) for count, each in (small, large)])
    found = result("PD104", made)
    assert found.state == state
    if state == "fires":
        shown = {e.label: e.value for e in found.evidence}
        assert shown["all-reduce operations a backward pass"] == "50"
        assert shown["bytes of one, median"] == "at most 64.0 KiB"


@pytest.mark.parametrize(("count", "mib"), [(120, 120 * 3.8), (128, 800)])
def test_parts_of_a_reduce_scatter_tell_no_size(tmp_path: Path, count: int, mib: float) -> None:
    """Buckets of 64,000,000 elements in FP32 over 64 ranks; layers of FSDP."""
    made = with_rows(reducing(tmp_path, count=count, mib=mib), collective="reduce_scatter")
    assert result("PD104", made).state == "not_applicable"
