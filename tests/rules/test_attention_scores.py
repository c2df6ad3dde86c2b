"""PD511: the share of the peak that attention scores hold."""

from pathlib import Path

import pytest

from perfdoc.analyzers.memory.snapshot import measure_snapshot
from perfdoc.results.memory import MemoryAnalysis
from perfdoc.rules.engine.case import Case
from tests.analyzers.memory_planted import FORWARD
from tests.analyzers.test_memory_attention import ADDMM, ATTENTION, NATIVE, kept
from tests.rules.cases import result
from tests.rules.examples import example
from tests.rules.laid import given


def remembered(folder: Path, scores_mib: int, rest_mib: int) -> Case:
    planted = kept((scores_mib, (NATIVE, ATTENTION)), (rest_mib, (ADDMM, FORWARD)))
    devices = measure_snapshot(planted.write(folder / "m.pickle"))
    memory = MemoryAnalysis(state="measured", reason="", remedy="", devices=devices, processes=[])
    case = Case.of([])
    return Case(captures=case.captures, job=case.job, gains=case.gains, memory=memory)


@example("PD511")
def scores_in_memory(folder: Path) -> Case:
    """A snapshot at whose peak a softmax in a function named causal_attention holds 400 of 1,000 MiB, in a
    job of Megatron-LM."""
    return given(remembered(folder, 400, 600), attention_backend="unfused")


@pytest.mark.parametrize(
    ("scores", "state", "level"),
    [
        (250, "fires", "problem"),
        (249, "fires", "information"),
        (50, "fires", "information"),
        (49, "passes", ""),
    ],
)
def test_the_share_of_the_peak_decides(tmp_path: Path, scores: int, state: str, level: str) -> None:
    found = result("PD511", remembered(tmp_path, scores, 1000 - scores))
    assert (found.state, found.level if level else "", found.gain) == (state, level, None)
    assert ("scaled_dot_product_attention" in found.remedy) == (state == "fires")
    assert found.evidence[0].value.endswith(f"{scores / 10:.1f} %")


def test_without_a_history_nothing_is_said() -> None:
    assert result("PD511", Case.of([])).state == "skipped"
