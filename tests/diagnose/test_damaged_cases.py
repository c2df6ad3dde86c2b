"""The small captures after public reports (../shared/cases): damage is told, figures are those of the rest.

Each has four steps of 4,869 us (one of six steps: 7,575 us): twelve GEMMs of 400 us on one stream, and
all-reduces of 150 us on another.
"""

from __future__ import annotations

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.results import Diagnosis
from tests.conftest import SHARED_TRACES

US = 1_000
CASES = SHARED_TRACES.parent / "cases"


def of(name: str) -> Diagnosis:
    path = CASES / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip("the small captures (../shared/cases beside the repository) are not here")
    return diagnose([measure_capture(path, WindowRequest())])


def steps(found: Diagnosis) -> list[tuple[str, int]]:
    return [(s.name[-1], s.duration_ns) for s in found.ranks[0].window.step_list]


def told(found: Diagnosis) -> list[str]:
    """What is said of rows, but for the rank that is not there."""
    return [q.message for q in found.quality if q.code != "missing-ranks"]


def compute_ns(found: Diagnosis) -> int:
    return found.ranks[0].ledger_ns.compute


WHOLE = [("0", 4_869 * US), ("1", 4_869 * US), ("2", 4_869 * US), ("3", 4_822 * US)]


def test_a_duration_past_the_next_start_is_clipped() -> None:
    """One GEMM of 1.6 s among 48 of 400 us."""
    found, clean = of("10-rocm-dur-overflow/one_1.6s"), of("10-rocm-dur-overflow/clean")
    assert told(found) == ["1 kernel clipped by 1.6 s: longer than its stream allows."]
    assert told(clean) == []
    assert found.ranks[0].ledger_ns == clean.ranks[0].ledger_ns
    assert (steps(found), compute_ns(found)) == (WHOLE, 48 * 400 * US)


def test_kernels_at_time_0_are_set_aside() -> None:
    """4 of 48, all of the first step, which is left out; the three that are whole are those of the clean
    file."""
    found, clean = of("11-kineto-ts0/old_ts0"), of("11-kineto-ts0/old_clean")
    first, second = told(found)
    assert first == "4 kernels set aside: no time."
    assert second == "ProfilerStep#0 left out: 4 of 15 kernel launches have no timed kernel in the file."
    assert steps(clean) == WHOLE
    assert steps(found) == WHOLE[1:]
    assert compute_ns(found) == 36 * 400 * US
    assert not found.ranks[0].events.partial
    assert found.verdict.startswith("98.9 % of the 4.85 ms step is compute")


def test_a_name_with_bare_quotes_is_read() -> None:
    found = of("12-kineto-bad-json/quotes")
    (said,) = told(found)
    assert "not valid JSON" in said
    assert (steps(found), compute_ns(found)) == (WHOLE, 48 * 400 * US)
    assert found.job.world_size == 2  # what stands behind the events is there


def test_an_operator_of_negative_duration_is_set_aside() -> None:
    found = of("14-cpuop-intmin/neg_dur")
    assert told(found) == ["1 operator set aside: a negative duration."]
    assert (steps(found), compute_ns(found)) == (WHOLE, 48 * 400 * US)


def test_a_first_step_without_its_kernels_is_left_out() -> None:
    found = of("16-dropped-first-kernels/first9")
    assert told(found) == ["ProfilerStep#0 left out: 9 of 15 kernel launches have no kernel in the file."]
    assert (steps(found), compute_ns(found)) == (WHOLE[1:], 36 * 400 * US)
    assert told(of("16-dropped-first-kernels/full6")) == []


def test_intels_gpus_are_told_nothing_of_cuda() -> None:
    found = of("13-xpu/xpu")
    assert (steps(found), compute_ns(found)) == (WHOLE, 48 * 400 * US)
    (row,) = found.ranks[0].communication
    assert (row.transport, row.collective, row.count) == ("oneccl", "all_reduce", 12)
    remedies = " ".join(c.remedy for c in found.capabilities)
    assert "nsys" not in remedies
    assert "cuda_sync_events" not in remedies


def test_the_captures_own_word_goes_before_a_kernels_name() -> None:
    found = of("36-nccl-misnamed/misnamed_with_args")
    assert {row.collective for row in found.ranks[0].communication} == {"all_reduce"}
