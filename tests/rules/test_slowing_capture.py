"""PD906: what the capture records slows the host that the device waits for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.rules.checks import pd906_slowing_capture
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.registry import judge
from tests.rules.cases import case_of, result, step_with_gap

RECORDED = ["Python calls (with_stack)", "operator shapes (record_shapes)"]


def recording(case: Case, what: Sequence[str]) -> Case:
    return replace(case, captures=[replace(capture, slowed_by=what) for capture in case.captures])


def test_it_is_a_thing_to_do_where_the_host_is_late(tmp_path: Path) -> None:
    edge = round(pd906_slowing_capture.MIN_FRAC * 1000)
    assert edge == 50
    late = case_of(tmp_path, step_with_gap(edge))
    found = result("PD906", recording(late, RECORDED))
    assert (found.state, found.level) == ("fires", "problem")
    assert found.action == "Capture again with less: with_stack=False, record_shapes=False"
    assert result("PD906", late).state == "passes"
    assert result("PD906", recording(case_of(tmp_path, step_with_gap(edge - 1)), RECORDED)).state == "passes"


@pytest.mark.parametrize(
    ("what", "less"),
    [
        ("an NVTX range for every operator (2,000 ranges)", "no emit_nvtx: a few ranges by hand"),
        ("every allocation (profile_memory)", "profile_memory=False"),
    ],
)
def test_what_to_leave_out_is_named(tmp_path: Path, what: str, less: str) -> None:
    assert result("PD906", recording(case_of(tmp_path, step_with_gap(100)), [what])).action.endswith(less)


def test_it_stands_behind_what_makes_the_job_faster(tmp_path: Path) -> None:
    rows = judge(recording(case_of(tmp_path, step_with_gap(200)), RECORDED)).opportunities
    places = {code: at for at, row in enumerate(rows) for code in row.codes}
    assert places["PD201"] < places["PD906"]
    assert next(row.kind for row in rows if "PD906" in row.codes) == "capture"
