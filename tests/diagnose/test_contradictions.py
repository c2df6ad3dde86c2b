"""A configuration that the captures show to be another run's: told first, and no advice goes by it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdoc.analyzers.communication.known_groups import CallGroup
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.kernel_class.number_format import format_of
from perfdoc.analyzers.kernel_class.rules import KernelClass
from perfdoc.analyzers.kernels.parts import NamedTime
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.diagnose.contradictions import contradictions, without
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import first_missing, known, setting
from perfdoc.traces.job_facts import JobFacts
from tests.rules.communicating import A100, B200, H100, communicating

BY = "--config job.yaml"


@cache
def plain(dimension: str, gpu: str) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        return communicating(Path(folder), dimension, 100, gpu=gpu)


def capture_of(
    *,
    groups: tuple[CallGroup, ...] = (),
    gpu: str = H100,
    world: int | None = None,
    dimension: str = "tp",
    gemms: Mapping[str, int] | None = None,
    pipeline: Mapping[str, Any] | None = None,
    **given: Any,
) -> CaptureMeasurement:
    """Two tiny steps with an all-reduce, and what is planted of the job beside them."""
    (capture,) = plain(dimension, gpu).captures
    (rank,) = capture.ranks
    calls = rank.calls
    if groups:
        calls = replace(calls, groups=groups, group=np.zeros_like(calls.group))
    if gemms is not None:
        times = [
            NamedTime(name=n, short_name=n, kernel_class=KernelClass.GEMM, count=1, total_ns=t)
            for n, t in gemms.items()
        ]
        rank = replace(rank, kernel_times=times)
    rank = replace(rank, calls=calls, pipeline=replace(rank.pipeline, **(pipeline or {})))
    facts = JobFacts(**given, sources=dict.fromkeys(given, BY))
    return replace(capture, ranks=[rank], world_size=world, facts=facts)


def found_in(capture: CaptureMeasurement, **settings: Value) -> dict[str, tuple[str, str]]:
    rows = contradictions([capture], capture.facts, Configuration(values=settings, dialect="megatron_core"))
    return {row.fact: (row.given, row.captured) for row in rows}


TP8 = CallGroup(description="TENSOR_MODEL_PARALLEL_GROUP", size=8)
PP4 = {"group": (0, 8, 16, 24), "group_source": "group marks"}
BF16, FP16, FP8, NVJET, NAMELESS = (
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn",
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n",
    "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT",
    "cutlass::device_kernel<x>",
)


def test_group_sizes_and_stages() -> None:
    """TP 4 and PP 1 are given; eight ranks share a layer, and a pipeline has four stages."""
    capture = capture_of(groups=(TP8,), pipeline=PP4, tp=4, pp=1, cp=1, dp=2, world_size=8)
    found = found_in(capture)
    assert (found["tp"], found["pp"]) == (("4", "8"), ("1", "4"))
    right = capture_of(groups=(TP8,), pipeline=PP4, tp=8, pp=4, cp=1, dp=1, world_size=32)
    assert found_in(right) == {}
    assert found_in(replace(capture, facts=JobFacts())) == {}, "what nobody gave cannot be contradicted"


def test_a_dimension_that_communicates_has_several_ranks() -> None:
    """The range `tp comm` names the dimension; the size of its communicator is known or not."""
    assert found_in(capture_of(tp=1))["tp"] == ("1", "above 1")
    by_size = capture_of(groups=(CallGroup(communicator=5, size=8),), tp=4)
    assert found_in(by_size)["tp"] == ("4", "8")
    experts = capture_of(groups=(CallGroup(communicator=5, size=8),), tp=1, etp=8)
    assert found_in(experts) == {}, "experts alone are split"
    ring = capture_of(dimension="cp", groups=(CallGroup(communicator=5, size=2),), cp=4)
    assert found_in(ring) == {}, "a part of a hierarchical group"


@pytest.mark.parametrize(
    ("operation", "pp", "captured"), [("send", 2, None), ("send", 1, "above 1"), ("all_reduce", 2, "8")]
)
def test_messages_over_the_group_of_all_ranks_have_no_size(
    operation: str, pp: int, captured: str | None
) -> None:
    """megatron-core sends one direction of two stages over the default group, of eight ranks."""
    capture = capture_of(groups=(CallGroup(description="default_pg", size=8),), pp=pp)
    (rank,) = capture.ranks
    of_pp = np.full_like(rank.calls.dimension, DIMENSIONS.index("pp"))
    calls = replace(rank.calls, operations=(operation,), operation=0 * of_pp, dimension=of_pp)
    capture = replace(capture, ranks=[replace(rank, calls=calls)])
    assert found_in(capture) == ({} if captured is None else {"pp": (str(pp), captured)})
    by_size = replace(calls, groups=(CallGroup(communicator=5, size=8),))
    facts = replace(capture.facts, world_size=8)
    assert found_in(replace(capture, ranks=[replace(rank, calls=by_size)], facts=facts)) == found_in(capture)


def test_ranks() -> None:
    assert found_in(capture_of(world=32, world_size=8))["world_size"] == ("8", "32")
    large = capture_of(groups=(CallGroup(communicator=5, size=16),), world_size=8)
    assert found_in(large)["world_size"] == ("8", "16 or more")
    assert found_in(capture_of(world=32, world_size=32)) == {}


@pytest.mark.parametrize(
    ("numbers", "vpp", "given", "captured"),
    [
        ([0, 1, 2, 3], 1, 4, None),
        ([0, 1, 2, 3], 1, 8, "4"),
        ([0, 1, 0, 1], 2, 2, None),
        ([-1, -1, -1, -1], 1, 8, "4"),
        ([-1, -1, -1, -1], 2, 2, None),
        ([-1, -1, -1, -1], None, 2, None),  # or two chunks of two
        ([-1, -1, -1, -1], None, 3, "4 passes"),
    ],
)
def test_micro_batches(numbers: list[int], vpp: int | None, given: int, captured: str | None) -> None:
    rank = plain("tp", H100).captures[0].ranks[0]
    count = len(numbers)
    passes = replace(
        rank.pipeline.passes,
        **{name: np.zeros(count, np.int64) for name in vars(rank.pipeline.passes)}
        | {"is_forward": np.ones(count, np.bool_), "micro_batch": np.array(numbers, np.int32)},
    )
    measured = {"state": "measured", "passes": passes}
    capture = capture_of(dimension="dp", pipeline=measured, micro_batches=given, pp=2, vpp=vpp)
    expected = {} if captured is None else {"micro_batches": (str(given), captured)}
    assert found_in(capture) == expected


@pytest.mark.parametrize(
    ("given", "gemms", "captured"),
    [
        ("bf16", {BF16: 90, NAMELESS: 10}, None),
        ("fp16", {BF16: 90, NAMELESS: 10}, "bf16"),
        ("bf16", {FP16: 100}, "fp16"),
        ("bf16", {NVJET: 100}, None),
        ("fp16", {NVJET: 100}, "bf16"),
        ("fp16", {BF16: 40, NAMELESS: 60}, None),  # names say too little
        ("fp8", {BF16: 60, NAMELESS: 40}, None),  # the nameless may be FP8
        ("fp8", {BF16: 95, NAMELESS: 5}, "bf16"),
        ("fp8", {BF16: 60, FP8: 40}, None),
        ("bf16", {BF16: 60, FP8: 40}, "fp8"),  # twice as fast: 80 of 140 parts of the work
        ("bf16", {BF16: 88, FP8: 12}, None),  # 24 of 112
        ("fp16", {BF16: 88, FP8: 12}, "bf16"),
        ("fp8", {BF16: 88, FP8: 12}, None),
        ("bf16", {}, None),
    ],
)
def test_number_formats(given: str, gemms: dict[str, int], captured: str | None) -> None:
    found = found_in(capture_of(gemms=gemms, dtype=given))
    assert found == ({} if captured is None else {"dtype": (given, captured)})


def test_formats_by_name() -> None:
    names = {
        "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128": "bf16",
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn": "fp16",
        "volta_h884gemm_128x128": None,
        "ampere_sgemm_128x64_nn": "fp32",
        "nvjet_sm100_qqtst_256x128": "fp8",
        "cutlass_80_tensorop_s1688tf32gemm": "fp32",
        "cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4": "fp32",  # TF32
        "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn": "fp16",
        "cutlass_75_tensorop_s1688gemm_128x128": None,  # Turing has no TF32
        "triton_mm_f16": "fp16",
        "gemm_bf16gradbf16": "bf16",
    }
    assert {name: format_of(name) for name in names} == names


def test_the_gpu() -> None:
    assert found_in(capture_of(gpu=A100), fp8="hybrid") == {"fp8": ("hybrid", "no FP8")}
    assert found_in(capture_of(gpu=A100, dtype="fp8", gemms={})) == {"dtype": ("fp8", "no FP8")}
    assert found_in(capture_of(gpu=H100), fp8="hybrid", fp8_recipe="delayed") == {}
    assert found_in(capture_of(gpu=H100), fp8="hybrid", fp8_recipe="mxfp8") == {
        "fp8_recipe": ("mxfp8", "no MXFP8")
    }
    assert found_in(capture_of(gpu=B200), fp8="hybrid", fp8_recipe="mxfp8", fp4="e2m1") == {}
    assert found_in(capture_of(), nvlink_domain_size=72) == {"nvlink_domain_size": ("72", "8")}
    assert found_in(capture_of(), nvlink_domain_size=8) == {}
    # A name that is given is of devices without one; of the same chip it may be shorter.
    assert found_in(capture_of(gpu=H100, gpu_name="B200")) == {"gpu_name": ("B200", H100)}
    assert found_in(capture_of(gpu=H100, gpu_name="H100")) == {}
    assert found_in(capture_of(gpu=A100, gpu_name="A100")) == {}
    assert found_in(capture_of(gpu=H100, gpu_name="H200")) == {"gpu_name": ("H200", H100)}
    assert found_in(capture_of(gpu="GPU of tomorrow", gpu_name="H200")) == {
        "gpu_name": ("H200", "GPU of tomorrow")
    }
    assert found_in(capture_of(gpu=f"{H100}, 60 of 132 SMs", gpu_name="H100")) == {}


def test_what_followed_from_it_is_unknown_too() -> None:
    given = {"tp": 4, "pp": 1, "cp": 1, "world_size": 32}
    facts = JobFacts().updated(JobFacts(**given, sources=dict.fromkeys(given, BY)))
    assert (facts.dp, facts.sources["dp"]) == (8, "derived")
    capture = replace(capture_of(groups=(TP8,), world=32), facts=facts)
    settings = Configuration(values={"tensor_model_parallel_size": 4, "context_parallel_size": 1})
    found = contradictions([capture], facts, settings)
    assert [row.fact for row in found] == ["tp"]
    left, configuration = without(facts, settings, found)
    assert (left.tp, left.dp, left.pp, left.world_size) == (None, None, 1, 32)
    assert dict(configuration.values) == {"context_parallel_size": 1}
    assert configuration.unknown == {"tensor_model_parallel_size"}


def test_it_is_told_before_any_advice_and_rules_are_skipped_for_it() -> None:
    capture = capture_of(groups=(TP8,), tp=4, pp=1, cp=1, dp=1, world_size=4)
    settings = Configuration(
        values={"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 1}, dialect="megatron_core"
    )
    result = diagnose([capture], configuration=settings)
    assert result.quality[0].code == "config-contradicted"
    assert "TENSOR_MODEL_PARALLEL_GROUP" in result.why
    assert BY in result.why
    assert result.job is not None
    assert {c.fact for c in result.job.contradictions} == {"tp", "world_size"}
    assert (result.job.tp, result.job.pp) == (None, 1)
    skipped = [r for r in result.rules if r.state == "skipped" and "contradict the capture" in r.reason]
    assert skipped
    advised = {a.knob for r in result.rules for a in r.advice}
    assert "tensor_model_parallel_size" not in advised
    # The same capture with its own settings: nothing of it.
    right = capture_of(groups=(TP8,), tp=8, pp=1, cp=1, dp=1, world_size=8)
    own = Configuration(values={"tensor_model_parallel_size": 8}, dialect="megatron_core")
    sound = diagnose([right], configuration=own)
    assert sound.job is not None
    assert (sound.job.contradictions, sound.job.tp) == ([], 8)
    assert not [r for r in sound.rules if "contradict the capture" in r.reason]


def test_the_reason_of_a_skip_is_the_contradiction_only_where_it_is() -> None:
    case = plain("tp", H100)
    given = replace(case, configuration=Configuration(values={"tensor_model_parallel_size": 4}))
    capture = capture_of(groups=(TP8,), tp=4)
    found = contradictions([capture], capture.facts, given.configuration)
    case = replace(case, contradicted=found, as_given=given)
    needs = [setting("tensor_model_parallel_size")]
    missing = first_missing(case, needs)
    assert missing is not None
    assert "contradict the capture" in missing.reason
    other = first_missing(case, [setting("context_parallel_size")])
    assert other is not None
    assert other.reason == "context_parallel_size is not known"
    assert first_missing(case, [known("x", lambda case: 1)]) is None
