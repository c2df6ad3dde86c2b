"""PD503 to PD507 and PD510: masters, recomputation, memory to spare, copies, repeated activations."""

from pathlib import Path
from typing import Any

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.rules.checks import pd503_optimizer_state
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts import memory_relief, memory_room
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import STEP_US, US, case_of, evidence_of, gain_of, predicting, result, settings_of
from tests.rules.laid import FLASH, GIB, dense, device_memory, given, knowing, laid, remembering


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """One H100 of 80 GiB."""
    return case_of(tmp_path_factory.mktemp("x"), laid((GEMM, 900)))


def recomputing(us: int, name: str = GEMM, forward: str = FLASH) -> TimelineBuilder:
    """Steps of 1 ms: forward, then a backward that begins with so many us of a layer's forward."""
    builder, thread, device = one_gpu()
    for i in range(2):
        at = i * STEP_US * US
        end, middle = at + STEP_US * US, at + 400 * US
        thread.range(f"perfdoc.step {i}", at, end)
        thread.range("perfdoc.forward layer=0 module=mlp", at, at + 3)
        device.kernel("forward", at, middle, full_name=forward, launch=(thread, at, at + 1))
        thread.range("perfdoc.backward", at + 10, at + 30)
        thread.range("perfdoc.forward layer=0 module=mlp", at + 11, at + 15)
        again = middle + us * US
        device.kernel(name.split("<")[0], middle, again, full_name=name, launch=(thread, at + 12, at + 13))
        device.kernel(GEMM, again, end, launch=(thread, at + 20, at + 21))
    return builder


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Case]:
    edge = round(memory_relief.MIN_FRAC * 1000)
    assert edge == 20
    return {
        (us, name): case_of(tmp_path_factory.mktemp("x"), recomputing(us, name))
        for us, name in ((20, GEMM), (19, GEMM), (200, GEMM), (200, FLASH))
    }


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Recomputation without any fused attention."""
    return case_of(tmp_path_factory.mktemp("x"), recomputing(200, forward=GEMM))


FULL: dict[str, Value] = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "num_layers": 4,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "tensor_model_parallel_size": 1,
    "context_parallel_size": 1,
    "micro_batch_size": 9,
    "seq_length": 8192,
}
"""A layer that is not recomputed keeps 2.25 GiB more: 8192 x 9 x 1024 x (34 - 2) bytes."""


def test_recomputation_is_measured_first(again: dict[tuple[int, str], Case], steps: Case) -> None:
    assert result("PD504", given(again[19, GEMM], **FULL)).state == "passes"
    found = result("PD504", given(again[20, GEMM], **FULL))
    assert (found.state, found.level, found.advice) == ("fires", "information", [])
    assert evidence_of(found) == ["2.0 %", "20 µs"]
    assert "snapshot" in found.remedy
    assert result("PD504", given(again[200, GEMM], recompute_granularity=None)).state == "not_applicable"
    assert result("PD504", given(steps, recompute_granularity="full")).state == "skipped"


@pytest.mark.parametrize(
    ("reserved_gib", "advised"),
    [
        # 8 GiB of 80 stay free: 2.24 GiB to spare hold no layer, 2.26 hold one, 6.75 three (and 1 is set
        # already), 9 all four.
        (69.76, {}),
        (69.74, {"recompute_method": "block", "recompute_num_layers": 3}),
        (65.25, {"recompute_method": "block"}),
        (63.0, {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None}),
    ],
)
def test_as_many_layers_are_kept_as_memory_holds(
    tmp_path: Path, again: dict[tuple[int, str], Case], reserved_gib: float, advised: dict[str, Value]
) -> None:
    case = knowing(given(again[200, GEMM], **FULL), model=dense())
    case = predicting(
        remembering(case, device_memory(tmp_path, reserved_gib=reserved_gib)),
        without_recompute=(0.1, 0.2, 0.2),
    )
    found = result("PD504", case)
    assert (found.state, settings_of(found)) == ("fires" if advised else "passes", advised)
    if advised:
        assert found.level == "problem"
        # What was replayed is the gain of all four layers, and the most that fewer can have.
        everything = "recompute_granularity" in advised
        assert (gain_of(found).method, gain_of(found).mid_ms) == (
            ("replay", 0.2) if everything else ("ceiling", None)
        )


def test_blocks_are_made_smaller(tmp_path: Path, again: dict[tuple[int, str], Case]) -> None:
    settings = {**FULL, "recompute_method": "block", "recompute_num_layers": 3}
    case = knowing(given(again[200, GEMM], **settings), model=dense())
    found = result("PD504", remembering(case, device_memory(tmp_path, reserved_gib=69)))
    assert settings_of(found) == {"recompute_num_layers": 2}
    # Without the model nobody knows what a layer keeps.
    foreign = given(again[200, GEMM], **settings)
    unknown = result("PD504", remembering(foreign, device_memory(tmp_path, reserved_gib=69)))
    assert (unknown.state, unknown.level, unknown.advice) == ("fires", "information", [])


def test_fused_attention_needs_no_recomputation(again: dict[tuple[int, str], Case], by_hand: Case) -> None:
    settings: dict[str, Value] = {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)}
    case = predicting(given(again[200, FLASH], **settings), without_recompute=(0.1, 0.2, 0.2))
    found = result("PD504", case)
    assert (found.state, found.level, settings_of(found)["recompute_granularity"]) == (
        "fires",
        "problem",
        None,
    )
    unfused = result("PD504", given(by_hand, **settings))
    assert (unfused.level, unfused.advice) == ("information", [])


def test_what_unfused_attention_keeps_is_not_known(tmp_path: Path, by_hand: Case) -> None:
    case = knowing(given(by_hand, **FULL), model=dense())
    found = result("PD504", remembering(case, device_memory(tmp_path, reserved_gib=20)))
    assert (found.state, found.level, found.advice) == ("fires", "information", [])
    assert "PD405" in found.remedy


AWARE: dict[str, Value] = {
    "use_distributed_optimizer": True,
    "data_parallel_size": 4,
    "use_precision_aware_optimizer": False,
    "bf16": True,
}


def test_masters_that_repeat_the_weights(steps: Case) -> None:
    facts = {"model": dense(), "tp": 1, "pp": 1, "cp": 1}
    found = result("PD503", knowing(given(steps, **AWARE), **facts))
    # 2 bytes of each of 2^30 / 4 masters.
    assert (settings_of(found), evidence_of(found)) == ({"use_precision_aware_optimizer": True}, ["0.50 GiB"])
    assert found.level == "information"
    for change, state in (
        ({"use_precision_aware_optimizer": True}, "passes"),
        ({"bf16": False, "fp16": True}, "not_applicable"),
        ({"use_distributed_optimizer": False}, "not_applicable"),  # PD312's
        ({"use_megatron_fsdp": True}, "not_applicable"),
        ({"use_torch_fsdp2": True}, "not_applicable"),
        ({"fp8": "hybrid", "fp8_recipe": "delayed"}, "fires"),
        ({"fp8": "hybrid", "fp8_recipe": "tensorwise"}, "not_applicable"),
        ({"fp8": "hybrid"}, "not_applicable"),
        ({"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True}, "not_applicable"),
    ):
        assert result("PD503", given(steps, **{**AWARE, **change})).state == state
    for missing in ("use_precision_aware_optimizer", "use_distributed_optimizer"):
        unknown = {k: v for k, v in AWARE.items() if k != missing}
        assert result("PD503", given(steps, **unknown)).state == "skipped"


def test_masters_of_which_each_gpu_has_next_to_none(tmp_path: Path, steps: Case) -> None:
    # Half a percent of 80 GiB is 0.4 GiB: 2 GiB over DP x CP of 5 are that, over 6 are 0.33.
    assert pd503_optimizer_state.MIN_SAVED_FRAC == 0.005
    for dp, cp, state in ((5, 1, "fires"), (6, 1, "passes"), (2, 2, "fires"), (2, 3, "passes")):
        case = given(steps, **{**AWARE, "data_parallel_size": dp})
        facts = {"model": dense(), "tp": 1, "pp": 1, "cp": cp}
        assert result("PD503", knowing(case, **facts)).state == state, (dp, cp)
    # Where how much is not known, a snapshot may show that nothing is wanted: 30 % of 80 GiB are 24.
    for reserved_gib, state in ((56, "passes"), (56.1, "fires")):
        memory = device_memory(tmp_path, reserved_gib=reserved_gib)
        assert result("PD503", remembering(given(steps, **AWARE), memory)).state == state


def spare(folder: Path, case: Case, reserved_gib: float, above_gib: float, **settings: Value) -> Any:
    memory = device_memory(folder, reserved_gib=reserved_gib, peak_above_start_bytes=round(above_gib * GIB))
    return result("PD505", remembering(given(case, **settings), memory))


def test_memory_to_spare(tmp_path: Path, steps: Case) -> None:
    settings: dict[str, Value] = {
        "micro_batch_size": 2,
        "global_batch_size": 16,
        "data_parallel_size": 2,
        "pipeline_model_parallel_size": 1,
    }
    edge = 80 * (1 - memory_room.MIN_FREE_FRAC)
    assert spare(tmp_path, steps, edge + 0.01, 5, **settings).state == "passes"
    found = spare(tmp_path, steps, edge, 5, **settings)
    assert (found.state, found.level, settings_of(found)) == ("fires", "information", {"micro_batch_size": 4})
    # 24 GiB are free, of which 8 stay so: 16 hold twice of what a step takes, if that is 16 at most.
    assert settings_of(spare(tmp_path, steps, edge, 16, **settings)) == {"micro_batch_size": 4}
    large = spare(tmp_path, steps, edge, 16.01, **settings, recompute_granularity="full")
    assert (large.advice, large.remedy) == (
        [],
        "Spend it on less recomputation (PD504). Twice the micro-batch does not fit.",
    )
    # Three micro-batches do not halve; packs stay alone; four stages want four micro-batches each.
    for change in (
        {"global_batch_size": 12},
        {"sequence_packing_size": 4096, "micro_batch_size": 1},
        {"pipeline_model_parallel_size": 4},
    ):
        assert spare(tmp_path, steps, edge, 5, **{**settings, **change}).advice == []
    piped: dict[str, Value] = {**settings, "pipeline_model_parallel_size": 4, "global_batch_size": 128}
    assert settings_of(spare(tmp_path, steps, edge, 5, **piped)) == {"micro_batch_size": 4}
    assert result("PD505", steps).state == "skipped"


def test_pipeline_outputs(steps: Case) -> None:
    knob = "deallocate_pipeline_outputs"
    found = result("PD506", given(steps, "megatron_core", pipeline_model_parallel_size=2, **{knob: False}))
    assert (found.state, found.level, settings_of(found)) == ("fires", "information", {knob: True})
    one_stage: dict[str, Value] = {"pipeline_model_parallel_size": 1, knob: False}
    assert result("PD506", given(steps, "megatron_core", **one_stage)).state == "not_applicable"
    two: dict[str, Value] = {"pipeline_model_parallel_size": 2}
    assert result("PD506", given(steps, "megatron_core", **two)).state == "skipped"
    assert result("PD506", given(steps, "megatron_core", **two, **{knob: True})).state == "passes"
    for trainer in ("megatron_lm", "megatron_bridge"):
        assert result("PD506", given(steps, trainer, **two, **{knob: False})).state == "not_applicable"


def test_weights_under_fp8(steps: Case) -> None:
    gather, reuse = "fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"
    settings: dict[str, Value] = {"fp8": "hybrid", gather: False, "use_distributed_optimizer": True}
    assert result("PD507", given(steps, **settings)).advice == []  # in which recipe is not known
    settings |= {"fp8_recipe": "delayed"}
    found = result("PD507", knowing(given(steps, **settings), model=dense(), tp=2, pp=1))
    assert (found.state, found.level, settings_of(found)) == ("fires", "information", {gather: True})
    assert evidence_of(found) == ["0.50 GiB"]
    fine = {**settings, "fp8_recipe": "mxfp8"}
    both = settings_of(result("PD507", given(steps, "megatron_lm", **fine)))
    assert both == {gather: True, reuse: True}
    shared = {**fine, gather: True, reuse: False}
    assert settings_of(result("PD507", given(steps, "megatron_core", **shared))) == {reuse: True}
    assert result("PD507", given(steps, **{**shared, reuse: True})).state == "passes"
    assert result("PD507", given(steps, **shared, use_megatron_fsdp=True)).state == "passes"
    assert result("PD507", given(steps, **settings, use_torch_fsdp2=True)).state == "not_applicable"
    assert result("PD507", given(steps, **{**settings, gather: True})).state == "passes"
    assert result("PD507", given(steps, fp8=None)).state == "not_applicable"
    assert result("PD507", given(steps, fp8="hybrid")).state == "skipped"
    assert result("PD507", given(steps)).state == "not_applicable"  # the names of the GEMMs tell fp16


REPEATED: dict[str, Value] = {"tensor_model_parallel_size": 2, "sequence_parallel": False}
EIGHT_SEQUENCES: dict[str, Value] = {
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "context_parallel_size": 1,
    "micro_batch_size": 8,
    "seq_length": 8192,
    "recompute_granularity": None,
}


def test_repeated_activations(steps: Case) -> None:
    found = result("PD510", knowing(given(steps, **REPEATED, **EIGHT_SEQUENCES), model=dense()))
    # s b h is 64 Mi: 10 + 24 / 2 bytes of each instead of 34 / 2, 5 less, of each of 4 layers: 1.25 GiB.
    assert (settings_of(found), evidence_of(found)) == ({"sequence_parallel": True}, ["1.25 GiB"])
    assert found.level == "information"
    full = {**EIGHT_SEQUENCES, "recompute_granularity": "full"}
    assert result("PD510", knowing(given(steps, **REPEATED, **full), model=dense())).evidence == []
    assert result("PD510", given(steps, **{**REPEATED, "sequence_parallel": True})).state == "passes"
    assert result("PD510", given(steps, tensor_model_parallel_size=1)).state == "not_applicable"
    assert result("PD510", given(steps, tensor_model_parallel_size=2)).state == "skipped"
