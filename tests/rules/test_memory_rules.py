"""PD502, PD508 and PD509: out of memory, freed memory that waits, memory outside of PyTorch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfdoc.knobs.check import check
from perfdoc.knobs.knob import Value
from perfdoc.results.memory import DeviceMemory, MemoryAnalysis
from perfdoc.results.rules import RuleResult
from perfdoc.rules.checks import pd508_pending_frees, pd509_memory_outside_pytorch
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts import memory_room
from tests.analyzers.tiny import GEMM
from tests.rules.cases import case_of, evidence_of, if_unset, result, settings_of
from tests.rules.laid import GIB, dense, device_memory, failure, given, knowing, laid, remembering, retries


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """One H100 of 80 GiB."""
    return case_of(tmp_path_factory.mktemp("x"), laid((GEMM, 900)))


@pytest.fixture(scope="module")
def grace(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return case_of(tmp_path_factory.mktemp("x"), laid((GEMM, 900), gpu="NVIDIA GB200"))


def failed(folder: Path, case: Case, *, requested_gib: float = 2, **other: Any) -> Case:
    """79 of 80 GiB reserved, and another request that failed with half a GiB free."""
    gone = failure(requested_gib=requested_gib, free_gib=0.5)
    return remembering(
        case, device_memory(folder, reserved_gib=79, oom_events=1, out_of_memory=[gone], **other)
    )


def test_out_of_memory_says_what_was_asked_for(tmp_path: Path, steps: Case) -> None:
    found = result("PD502", failed(tmp_path, given(steps)))
    assert (found.state, found.level, settings_of(found)) == ("fires", "problem", {})
    assert "one tensor of 2.00 GiB in forward (model.py:30)" in found.remedy
    assert if_unset(found)["recompute_granularity"] in ("selective", "full")
    assert "recompute_granularity" in found.remedy
    assert "forward (model.py:30)" in found.evidence[2].label
    assert evidence_of(found)[:4] == ["1", "0", "2.00 GiB", "0.50 GiB"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("loss", "the loss in chunks"),
        ("attention", "Use fused attention"),
        ("optimizer", "8 bits"),
        ("weights", "smaller units"),
        ("cache", "decoding"),
        ("", "make it smaller there"),
    ],
)
def test_the_frame_of_a_failed_allocation_leads_to_its_remedy(
    tmp_path: Path, steps: Case, what: str, said: str
) -> None:
    gone = replace(failure(requested_gib=2, free_gib=0.5), what=what)  # type: ignore[arg-type]
    memory = device_memory(tmp_path, reserved_gib=79, oom_events=1, out_of_memory=[gone])
    remedy = result("PD502", remembering(given(steps), memory)).remedy
    assert said in (remedy.partition("Apply the advice")[0] if what else remedy)
    others = {"the loss in chunks", "Use fused attention", "8 bits", "smaller units", "decoding"} - {said}
    assert not [other for other in others if other in remedy]
    # Recomputed activations are no remedy of another tensor.
    shown = result("PD502", remembering(given(steps), memory))
    assert ("recompute_granularity" in if_unset(shown)) == (what == "")


@pytest.mark.parametrize(
    ("allocated_gib", "largest_gib", "fragmented"), [(70, 2, True), (76, 2, False), (70, 6, False)]
)
def test_unused_memory_in_small_blocks_is_fragmentation(
    tmp_path: Path, steps: Case, allocated_gib: int, largest_gib: int, fragmented: bool
) -> None:
    """5 GiB asked for, of 79 reserved: 9 are unused, in blocks of 2, or 3 are."""
    gone = replace(
        failure(requested_gib=5, free_gib=0.5, reserved_gib=79),
        allocated_bytes=allocated_gib << 30,
        largest_free_block_bytes=largest_gib << 30,
    )
    memory = device_memory(tmp_path, reserved_gib=79, oom_events=1, out_of_memory=[gone])
    found = result("PD502", remembering(given(steps), memory))
    assert found.remedy.startswith("Add expandable_segments:True") == fragmented
    assert ("recompute_granularity" in if_unset(found)) == (not fragmented)


NOTHING_SAVED: dict[str, Value] = {
    "use_distributed_optimizer": False,
    "data_parallel_size": 4,
    "tensor_model_parallel_size": 2,
    "sequence_parallel": False,
    "use_precision_aware_optimizer": False,
    "bf16": True,
    "fp8": None,
    "recompute_granularity": None,
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "optimizer_name": "adam",
}
"""Four data-parallel ranks of TP=2 that keep all states and all activations."""


def test_states_before_activations_before_the_micro_batch(tmp_path: Path, steps: Case) -> None:
    found = result("PD502", failed(tmp_path, given(steps, **NOTHING_SAVED)))
    assert settings_of(found) == {
        "use_distributed_optimizer": True,
        "sequence_parallel": True,
        "use_precision_aware_optimizer": True,
        "recompute_granularity": "selective",
        "recompute_modules": ("layernorm",),
        "micro_batch_size": 1,
    }
    assert next(iter(settings_of(found))) == "use_distributed_optimizer"
    alone = {**NOTHING_SAVED, "data_parallel_size": 1, "tensor_model_parallel_size": 1}
    left = settings_of(result("PD502", failed(tmp_path, given(steps, **alone)))).keys()
    assert not {"use_distributed_optimizer", "use_precision_aware_optimizer", "sequence_parallel"} & left


def test_modules_that_delayed_scaling_cannot_recompute(tmp_path: Path, steps: Case) -> None:
    settings: dict[str, Value] = {"recompute_granularity": None, "fp8": "hybrid", "fp8_recipe": "delayed"}
    whole = settings_of(result("PD502", failed(tmp_path, given(steps, **settings))))
    assert (whole["recompute_granularity"], whole["recompute_modules"]) == ("full", None)
    settings = {**settings, "fp8_recipe": "tensorwise", "moe_grouped_gemm": True, "num_moe_experts": 8}
    found = settings_of(result("PD502", failed(tmp_path, given(steps, **settings))))
    assert found["recompute_modules"] == ("layernorm", "moe_act")


def full(folder: Path, case: Case, requested_gib: float, **settings: Value) -> RuleResult:
    base: dict[str, Value] = {
        "recompute_granularity": "selective",
        "recompute_modules": ("layernorm",),
        "recompute_method": None,
        "recompute_num_layers": None,
        "num_layers": 4,
        "pipeline_model_parallel_size": 1,
        "virtual_pipeline_model_parallel_size": None,
        "tensor_model_parallel_size": 1,
        "context_parallel_size": 1,
        "micro_batch_size": 9,
        "seq_length": 8192,
    }
    known = knowing(given(case, **base, **settings), model=dense())
    return result("PD502", failed(folder, known, requested_gib=requested_gib))


def test_as_few_layers_as_make_up_for_what_was_short(tmp_path: Path, steps: Case) -> None:
    # s b h = 8192 x 9 x 1024 = 72 Mi: a layer keeps 34 bytes of each and its input 2, so that one gives
    # back 32 x 72 MiB = 2.25 GiB. 4.5 GiB are short of a request of 5 GiB: two layers.
    found = settings_of(full(tmp_path, steps, 5))
    assert found == {
        "recompute_granularity": "full",
        "recompute_modules": None,
        "recompute_method": "block",
        "recompute_num_layers": 2,
    }
    assert settings_of(full(tmp_path, steps, 5.1))["recompute_num_layers"] == 3
    every = settings_of(full(tmp_path, steps, 20))
    assert (every["recompute_method"], every["recompute_num_layers"]) == ("uniform", 1)


def test_host_memory_on_grace(tmp_path: Path, grace: Case, steps: Case) -> None:
    settings: dict[str, Value] = {
        "recompute_granularity": None,
        "cuda_graph_impl": "none",
        "num_layers": 4,
        "pipeline_model_parallel_size": 1,
        "fp8": None,
    }
    found = settings_of(result("PD502", failed(tmp_path, given(grace, **settings))))
    assert found == {"cpu_offloading": True, "cpu_offloading_weights": False, "cpu_offloading_num_layers": 3}
    assert "cpu_offloading" not in settings_of(result("PD502", failed(tmp_path, given(steps, **settings))))
    piped = {**settings, "pipeline_model_parallel_size": 2}
    assert "cpu_offloading" not in settings_of(result("PD502", failed(tmp_path, given(grace, **piped))))


def test_nothing_advised_is_forbidden_together(tmp_path: Path, steps: Case, grace: Case) -> None:
    for case in (steps, grace):
        settings: dict[str, Value] = {
            "recompute_granularity": None,
            "cuda_graph_impl": "none",
            "num_layers": 4,
            "pipeline_model_parallel_size": 1,
            "fp8": None,
            "use_distributed_optimizer": True,
            "use_precision_aware_optimizer": False,
            "bf16": True,
            "micro_batch_size": 4,
        }
        known = failed(tmp_path, given(case, **settings))
        advised = settings_of(result("PD502", known))
        assert len(advised) >= 4
        assert check(known.configuration, advised) == ()


def layout(folder: Path, pending_gib: float, **other: Any) -> DeviceMemory:
    """So much of 60 GiB freed and not given back."""
    memory = device_memory(folder, **other)
    assert memory.layout is not None
    pieces = replace(memory.layout, reserved_bytes=60 * GIB, pending_free_bytes=round(pending_gib * GIB))
    return replace(memory, layout=pieces)


def test_freed_memory_that_waits(tmp_path: Path, steps: Case) -> None:
    edge = pd508_pending_frees.MIN_FRAC * 60

    def of(pending_gib: float, settings: dict[str, Value] | None = None, **other: Any) -> RuleResult:
        version = other.pop("version", "2.7.1+cu128")
        case = remembering(given(steps, **(settings or {})), layout(tmp_path, pending_gib, **other))
        facts = replace(case.job.facts, torch_version=version)
        return result("PD508", replace(case, job=replace(case.job, facts=facts)))

    short = {"total_gib": 65.0}
    found = of(edge, **short)
    assert (found.state, found.level) == ("fires", "problem")
    assert settings_of(found) == {"torch_nccl_avoid_record_streams": 1}
    assert of(edge - 0.01, **short).state == "passes"
    assert of(edge, total_gib=80.0).state == "passes"
    assert of(edge, total_gib=80.0, calls=retries(1)).state == "fires"
    assert of(edge, {"torch_nccl_avoid_record_streams": 1}, **short).state == "passes"
    assert result("PD508", steps).state == "skipped"
    # From 2.8 on PyTorch ignores the variable; what is no release's version may be either way.
    for version, settled in (("2.8.0", True), ("2.10.0+cu130", True), ("2.8.0a0+5228986.nv25.05", True),
                             ("2.7.0a0+79aa17.nv25.04", False), (None, False), ("main", False)):  # fmt: skip
        found = of(edge, version=version, **short)
        assert (found.state, found.advice) == ("fires", [])
        assert "record_stream" in found.remedy
        assert ("TORCH_NCCL_AVOID_RECORD_STREAMS=1" in found.remedy) != settled
    assert settings_of(of(edge, version="1.13.1", **short)) == {"torch_nccl_avoid_record_streams": 1}


@pytest.mark.parametrize(
    ("code", "what"), [("PD501", "inactive_split_bytes"), ("PD508", "pending_free_bytes")]
)
def test_the_device_that_is_short_is_the_one_that_counts(
    tmp_path: Path, steps: Case, code: str, what: str
) -> None:
    """A fifth of one device's memory is lost while it has 20 GiB to spare; an eighth of one that is full."""

    def device(total_gib: float, lost_gib: float) -> DeviceMemory:
        memory = layout(tmp_path, 0, total_gib=total_gib)
        assert memory.layout is not None
        return replace(memory, layout=replace(memory.layout, **{what: round(lost_gib * GIB)}))

    roomy, full, sound = device(80, 12), device(61, 7.5), device(61, 0.1)
    found = result(code, remembering(steps, roomy, full))
    assert (found.state, evidence_of(found)[0].startswith("12.5 %")) == ("fires", True)
    assert result(code, remembering(steps, roomy, sound)).state == "passes"


def test_memory_outside_of_pytorch(tmp_path: Path, steps: Case) -> None:
    edge_gib = pd509_memory_outside_pytorch.MIN_BYTES / GIB
    assert edge_gib == 4

    def of(reserved_gib: float, settings: dict[str, Value] | None = None) -> RuleResult:
        """An H100 of 80 GiB with 1 GiB free as an allocation failed."""
        gone = failure(requested_gib=2, free_gib=1, reserved_gib=reserved_gib)
        memory = device_memory(tmp_path, oom_events=1, out_of_memory=[gone])
        return result("PD509", remembering(given(steps, **(settings or {})), memory))

    found = of(75)
    assert (found.state, found.level, evidence_of(found)) == ("fires", "information", ["4.00 GiB"])
    assert settings_of(found) == {"nccl_nvls_enable": 0}
    assert of(75.01).state == "passes"
    assert of(70, {"nccl_ub": True}).advice == []
    assert result("PD509", remembering(steps, device_memory(tmp_path))).state == "not_applicable"
    assert result("PD509", steps).state == "skipped"


def test_a_snapshot_without_figures(steps: Case) -> None:
    nothing = MemoryAnalysis(state="not_measured", reason="no history", remedy="", devices=[], processes=[])
    for code in ("PD502", "PD505", "PD508", "PD509"):
        found = result(code, replace(steps, memory=nothing))
        assert (found.state, found.reason) == ("skipped", "no history")


def test_nobody_is_out_of_memory(tmp_path: Path, steps: Case) -> None:
    assert result("PD502", steps).state == "skipped"
    assert result("PD502", remembering(steps, device_memory(tmp_path))).state == "passes"
    least = memory_room.MIN_RETRIES
    for count, state in ((least - 1, "passes"), (least, "fires")):
        memory = device_memory(tmp_path, calls=retries(count))
        found = result("PD502", remembering(steps, memory))
        assert (found.state, evidence_of(found)[1]) == (state, str(count))
