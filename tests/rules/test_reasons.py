"""Reasons and remedies name what is missing, not what usually is."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdoc.analyzers.device.window import NO_LAUNCHES, WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.knobs.configuration import Configuration
from perfdoc.reports.sections.kernel_parts import _linear
from perfdoc.results.kernels import KernelPartsAnalysis
from perfdoc.rules.checks import pd204_exposed_copies as pd204
from perfdoc.simulator.replay.edits.kernels import in_fp8
from tests.analyzers.tiny import GEMM
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.reports.build import one_rank
from tests.reports.fill import filled
from tests.rules.cases import US, case_of, evidence_of, result
from tests.rules.communicating import communicating, having
from tests.rules.planted_cases import on
from tests.rules.test_exposed_copies import copying
from tests.rules.test_roofline_rules import multiplying


def test_a_snapshot_alone_is_no_job_on_the_cpu() -> None:
    found = diagnose([])
    said = [found.analyses.kernels, found.analyses.host_gaps, found.analyses.replay, found.analyses.gains]
    assert {one.reason for one in said} == {"no trace was given"}
    assert "no-replay" not in found.analyses.replay.remedy + found.analyses.gains.remedy
    reasons = {rule.code: rule.reason for rule in found.rules}
    for code in ("PD101", "PD112", "PD201", "PD202", "PD401"):
        assert reasons[code] == "no trace was given", code


@pytest.mark.parametrize(
    ("kinds", "pinned", "advises", "states"),
    [
        ((True, True), 2, False, True),
        ((False, False), 0, True, False),
        ((False, True), 1, True, False),
        ((None, True), None, True, False),
    ],
)
def test_pinned_copies_are_not_to_be_pinned(
    tmp_path: Path, kinds: tuple[bool | None, bool | None], pinned: int | None, advises: bool, states: bool
) -> None:
    """Two copies of 1 MiB in 150 us each, one after the other: 6.99 GB/s."""
    found = result("PD204", case_of(tmp_path, copying(50, pinned=kinds)))
    assert ("pin_memory" in found.remedy, "pinned already, so" in found.remedy) == (advises, states)
    words = "1 a step, 1.0 MiB, 50 µs exposed, 6.99 GB/s"
    part = {None: "", 0: ", none pinned", 1: ", 50.0 % pinned", 2: ", all pinned"}[pinned]
    assert evidence_of(found)[-1] == f"{words}{part}"
    assert ("if it is not pinned already" in found.remedy) == (pinned is None)
    assert pd204.MOSTLY_FRAC == 0.9


@pytest.mark.parametrize(("said", "pinned"), [("Pinned", 2), ("Pageable", 0), ("Unknown", None)])
def test_kineto_names_the_host_memory(tmp_path: Path, said: str, pinned: int | None) -> None:
    timeline = copying(50).build()
    path = write_kineto(timeline, tmp_path / "rank0.json", timeline.processes[0].pid)
    path.write_text(path.read_text().replace("HtoD (Pinned", f"HtoD ({said}"))
    (rank,) = measure_capture(path, WindowRequest()).ranks
    (copies,) = [c for c in rank.copies if c.kind == "host to device"]
    assert copies.pinned == pinned


def test_marked_steps_are_not_to_be_marked(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    for i in range(2):
        thread.range(f"ProfilerStep#{i}", i * 100 * US, (i + 1) * 100 * US)
        device.kernel(GEMM, i * 100 * US, (i * 100 + 90) * US)
    found = result("PD902", case_of(tmp_path, builder))
    assert (found.state, found.reason) == ("fires", NO_LAUNCHES)
    assert ("Wrap each step" in found.remedy, "launches" in found.remedy) == (False, True)
    assert "launches" in found.action
    unmarked = TimelineBuilder()
    unmarked.process().device().kernel(GEMM, 0, 90 * US)
    assert "Wrap each step" in result("PD902", case_of(tmp_path, unmarked)).remedy


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NVIDIA A100-SXM4-80GB", "ampere GPUs have no FP8 GEMMs"),
        ("Tesla V100-SXM2-32GB", "volta GPUs have no FP8 GEMMs"),
        ("GeForce RTX 3070 Laptop GPU", "ampere GPUs have no FP8 GEMMs"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "the FP8 rate of these GPUs is unknown"),
        ("Some New GPU", "the FP8 rate of these GPUs is unknown"),
        ("NVIDIA H100 80GB HBM3", "dtype"),
    ],
)
def test_gpus_without_fp8_are_known(name: str, words: str) -> None:
    rank = SimpleNamespace(gpu_name=name, facts=SimpleNamespace(dtype=None))
    with pytest.raises(ValueError, match=words):
        in_fp8(SimpleNamespace(ranks=[rank]))  # type: ignore[arg-type]


def test_a_gpu_that_rules_do_not_know_is_not_called_unknown(tmp_path: Path) -> None:
    """Volta has a name and rates; two GPUs are no one model; the last name is of none."""
    case = multiplying(tmp_path, (1_024, 1_024, 50_257, 400))

    def said(*names: str) -> tuple[str, str]:
        captures = [capture for name in names for capture in on(case, name).captures]
        found = result("PD401", replace(case, captures=captures))
        return found.state, found.reason

    assert said("Tesla V100-SXM2-32GB")[0] == "not_applicable"
    assert "volta" in said("Tesla V100-SXM2-32GB")[1]
    for names in (("NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe"), ("NVIDIA H100 PCIe", "X")):
        assert said(*names) == ("skipped", "the ranks have GPUs of several models, or some are not known")
    assert said("X") == ("skipped", "the GPU model is not known")


def test_shapes_are_not_asked_for_where_the_rates_are_missing(tmp_path: Path) -> None:
    """Every GEMM has its shapes; the GPU has a name that no data sheet is known for."""
    case = multiplying(tmp_path, (1_024, 1_024, 50_257, 400), gpu="GPU of tomorrow")
    for code in ("PD410", "PD412"):
        found = result(code, case)
        assert found.state == "skipped"
        assert "GPU of tomorrow is not in the table of GPUs" in found.reason
        assert "record" not in found.reason
        assert "gpu_name" not in found.reason  # what is given does not stand for a name that is there
    (note, *_) = case.ranks[0].efficiency.notes
    assert "no rates of this device" in note


def test_experts_gemms_count_for_a_faster_precision() -> None:
    """An eighth of the window in linear layers and a quarter in experts' GEMMs are 37.5 % at most."""
    (rank,) = one_rank().ranks
    measured = filled(
        KernelPartsAnalysis,
        state="measured",
        compute_kernel_ns=100_000_000,
        linear_ns=55_000_000,
        linear_window_frac=0.125,
    )
    for grouped_ns, said in ((0, False), (rank.window.duration_ns // 4, True)):
        parts = replace(measured, grouped_linear_ns=grouped_ns)
        (words,) = _linear([replace(rank, kernel_parts=parts)])
        assert ("experts' GEMMs at most 37.5 %" in words, "12.5 %" in words) == (said, True)


def test_a_given_configuration_is_not_asked_for(tmp_path: Path) -> None:
    case = communicating(tmp_path, "dp", 100)
    for code in ("PD310", "PD343", "PD315"):
        bare = result(code, replace(case, configuration=Configuration()))
        if bare.state == "skipped" and "degrees" in bare.reason:
            assert "give the job's configuration" in bare.reason
            given = result(code, having(case, {"tensor_model_parallel_size": 2}))
            assert "give the job's configuration" not in given.reason
            assert "context_parallel_size" in given.reason
            assert "tensor_model_parallel_size" not in given.reason
            return
    raise AssertionError("no rule asked for degrees")


def test_steps_are_named_by_the_ranges_that_are_there(tmp_path: Path) -> None:
    """Nobody who reads `forward pass` and `backward pass` on the timeline is told to make ranges."""
    builder, thread, device = one_gpu()
    for i in range(3):
        for k, name in enumerate(("forward pass", "backward pass")):
            at = (200 * i + 100 * k) * US
            thread.range(name, at, at + 95 * US)
            for n in range(4):
                begin = at + (1 + 20 * n) * US
                device.kernel(GEMM, begin + US, begin + 15 * US, launch=(thread, begin, begin + US))
    found = result("PD902", case_of(tmp_path, builder))
    assert found.state == "fires"
    assert found.action.startswith("Name the steps: ")
    assert "forward.pass" in found.action or "backward.pass" in found.action
