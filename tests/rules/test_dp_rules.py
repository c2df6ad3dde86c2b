"""PD101 to PD105: what to do about data-parallel communication, and what not."""

from dataclasses import replace

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.results.waits import RankWait
from perfdoc.rules.checks.pd103_slow_dp_links import LOW_LINK_FRAC, RING_RANKS
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.gradient_sums import MANY_RANKS
from tests.rules.cases import gain_of, predicting, result, settings_of
from tests.rules.communicating import A100, LLAMA_8B, ONE, communicating, having, with_rows
from tests.rules.laid import knowing

SHARDED: dict[str, Value] = {"use_distributed_optimizer": True, "overlap_grad_reduce": True}


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """DP communication that is exposed for a tenth of each step."""
    return communicating(tmp_path_factory.mktemp("dp"), "dp", 100)


def test_pd101_leaves_buckets_alone_where_they_are_not_read(exposed: Case) -> None:
    case = predicting(exposed, **{"buckets_x4": (0.01, 0.02, 0.03)})
    settings: dict[str, Value] = {"bucket_size": 1000, "overlap_grad_reduce": True}
    assert settings_of(result("PD101", having(case, settings))) == {"bucket_size": 4000}
    piped = result("PD101", having(case, {**settings, "pipeline_model_parallel_size": 4}))
    assert settings_of(piped) == {}
    assert "only the first chunk of the first stage" in piped.remedy
    small: dict[str, Value] = {**settings, "data_parallel_size": 64}
    unsure = predicting(exposed, **{"buckets_x4": (0.0, 0.02, 0.03)})
    assert settings_of(result("PD101", having(unsure, small))) == {"bucket_size": 64_000_000}
    assert settings_of(result("PD101", having(unsure, {**small, "bucket_size": 64_000_000}))) == {}
    # Null is max(40 M, 1 M x DP) elements in megatron-core; Megatron-Bridge puts a number of its own there.
    null: dict[str, Value] = {"bucket_size": None, "overlap_grad_reduce": True, "data_parallel_size": 64}
    assert settings_of(result("PD101", having(case, null))) == {"bucket_size": 256_000_000}
    assert settings_of(result("PD101", having(case, null, "megatron_bridge"))) == {}
    fsdp = result("PD101", having(case, {**settings, "use_megatron_fsdp": True}))
    assert settings_of(fsdp) == {"bucket_size": None}


def test_pd101_leaves_buckets_alone_in_a_pipeline_that_only_the_capture_shows(exposed: Case) -> None:
    case = predicting(exposed, **{"buckets_x4": (0.01, 0.02, 0.03)})
    pipeline, facts = replace(case.job.pipeline, pp=2), replace(case.job.facts, pp=None)
    piped = replace(case, job=replace(case.job, pipeline=pipeline, facts=facts))
    settings: dict[str, Value] = {"bucket_size": 1000, "overlap_grad_reduce": True}
    assert settings_of(result("PD101", having(case, settings))) == {"bucket_size": 4000}
    assert settings_of(result("PD101", having(piped, settings))) == {}
    unset: dict[str, Value] = {"overlap_grad_reduce": True}
    assert "bucket_size is not known" in result("PD101", having(case, unset)).remedy
    assert "bucket_size" not in result("PD101", having(piped, unset)).remedy


def test_pd101_sizes_no_buckets_that_the_overlap_will_change(exposed: Case) -> None:
    """Without overlap all gradients are one bucket; with it another one than was replayed is best."""
    off: dict[str, Value] = {"bucket_size": 1000, "overlap_grad_reduce": False}
    case = predicting(exposed, buckets_x4=(0.01, 0.02, 0.03), overlapped_dp=(0.01, 0.015, 0.02))
    found = result("PD101", having(case, off))
    assert settings_of(found) == {"overlap_grad_reduce": True}
    assert (found.gain and found.gain.mid_ms) == 0.015


def test_pd101_gain_of_gradients_alone_is_a_ceiling_where_weights_may_be_gathered(exposed: Case) -> None:
    """The replay overlaps both; whether weights are overlapped already is not known."""
    case = with_rows(predicting(exposed, overlapped_dp=(0.01, 0.015, 0.02)), collective="all_gather")
    for more, method in (({}, "ceiling"), ({"overlap_param_gather": True}, "replay")):
        settings: dict[str, Value] = {"overlap_grad_reduce": False, "use_distributed_optimizer": True}
        found = result("PD101", having(case, {**settings, **more}))
        assert (found.gain and found.gain.method) == method


def test_pd101_does_not_call_an_overlap_a_problem_that_costs_time(exposed: Case) -> None:
    off: dict[str, Value] = {"overlap_grad_reduce": False}
    for mid, level, advised in (
        (0.001, "problem", {"overlap_grad_reduce": True}),
        (-0.001, "information", {}),
    ):
        found = result("PD101", having(predicting(exposed, overlapped_dp=(mid, mid, mid)), off))
        assert (found.level, settings_of(found)) == (level, advised)
        assert ("predicts a loss" in found.remedy) == (not advised)


@pytest.mark.parametrize(
    ("dp", "more", "advised"),
    [
        (MANY_RANKS - 1, {}, {"grad_reduce_in_fp32": False}),
        (MANY_RANKS, {}, {}),
        (MANY_RANKS, {"use_sharp": True}, {"grad_reduce_in_fp32": False}),
        (
            MANY_RANKS,
            {"num_distributed_optimizer_instances": 1},
            {"reduce_scatter_with_fp32_accumulation": True, "grad_reduce_in_fp32": False},
        ),
    ],
)
def test_pd101_narrow_sums_over_many_ranks(
    exposed: Case, dp: int, more: dict[str, Value], advised: dict[str, Value]
) -> None:
    settings = {**SHARDED, **ONE, "grad_reduce_in_fp32": True, "data_parallel_size": dp, **more}
    case = knowing(having(predicting(exposed, dp_half_bytes=(0.01, 0.02, 0.03)), settings), dtype="bf16")
    found = result("PD101", case)
    assert settings_of(found) == advised
    assert (f"over {dp} ranks is not advised" in found.remedy) == (not advised)
    replayed = bool(advised) and len(advised) == 1
    assert (gain_of(found).method, gain_of(found).mid_ms) == (
        ("replay", 0.02) if replayed else ("ceiling", None)
    )


@pytest.mark.parametrize(
    ("settings", "advised"),
    [
        ({"fp8": "hybrid", "fp8_param_gather": False, "fp8_recipe": "delayed"}, {"fp8_param_gather": True}),
        (
            {"fp8": "hybrid", "fp8_param_gather": False, "fp8_recipe": "mxfp8"},
            {"fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True},
        ),
        ({"fp8": None, "fp8_param_gather": False}, {}),
        ({"fp8": "hybrid", "fp8_param_gather": False, "fp8_recipe": "blockwise"}, {"fp8_param_gather": True}),
        ({"fp8": "hybrid", "fp8_param_gather": False, "fp8_recipe": "custom"}, {}),
        ({"fp8": "hybrid", "fp8_param_gather": False}, {}),
        ({"fp8": "hybrid", "fp8_recipe": "delayed"}, {}),
    ],
)
def test_pd101_gathers_fp8_weights(
    exposed: Case, settings: dict[str, Value], advised: dict[str, Value]
) -> None:
    case = having(exposed, {**SHARDED, **settings})
    assert settings_of(result("PD101", case)) == advised
    # What can be gathered is one fact: the rule of memory says the same.
    weights = result("PD507", case)
    assert settings_of(weights) == advised
    if settings.get("fp8_recipe") == "custom":
        assert (weights.state, "one of the program's own" in weights.remedy) == ("fires", True)


def test_pd102(exposed: Case) -> None:
    """The all-reduce's name says bf16."""
    many = {**ONE, "data_parallel_size": MANY_RANKS}
    fires = result("PD102", having(exposed, many))
    assert (fires.state, fires.level) == ("fires", "information")
    assert settings_of(fires) == {"grad_reduce_in_fp32": True}
    sharded = having(exposed, {**many, **SHARDED, "num_distributed_optimizer_instances": 1})
    assert settings_of(result("PD102", sharded)) == {"reduce_scatter_with_fp32_accumulation": True}
    for settings, state in (
        ({**many, "data_parallel_size": MANY_RANKS - 1}, "passes"),
        ({**many, "data_parallel_size": MANY_RANKS // 2, "context_parallel_size": 2}, "fires"),
        ({**many, "use_sharp": True}, "passes"),
        ({**many, "reduce_scatter_with_fp32_accumulation": True}, "passes"),
        ({**many, "data_parallel_size": 1}, "not_applicable"),
        ({}, "skipped"),
    ):
        assert result("PD102", having(exposed, settings)).state == state, settings
    assert result("PD102", with_rows(having(exposed, many), element_type="f32")).state == "passes"


@pytest.mark.parametrize(
    ("settings", "dtype", "state"),
    [
        ({"grad_reduce_in_fp32": True}, "bf16", "passes"),
        ({"grad_reduce_in_fp32": False}, "bf16", "fires"),
        ({"grad_reduce_in_fp32": False}, None, "skipped"),
        ({"grad_reduce_in_fp32": False, "bf16": True}, None, "fires"),
        ({}, "bf16", "skipped"),
    ],
)
def test_pd102_by_settings(exposed: Case, settings: dict[str, Value], dtype: str | None, state: str) -> None:
    case = having(exposed, {**ONE, "data_parallel_size": MANY_RANKS, **settings})
    assert result("PD102", knowing(with_rows(case, element_type=""), dtype=dtype)).state == state


NODES: dict[str, Value] = {
    **ONE,
    **SHARDED,
    "data_parallel_size": 64,
    "num_distributed_optimizer_instances": 1,
    "pad_buckets_for_high_nccl_busbw": False,
    "nccl_ub": False,
    "use_sharp": False,
}


def slow(case: Case, gbps: float | None, settings: dict[str, Value]) -> Case:
    return with_rows(having(case, settings), bus_bandwidth_gbps=gbps)


def test_pd103_across_nodes(exposed: Case) -> None:
    """64 ranks over 8 nodes of 8 H100: min(450, 8 x 50) = 400 GB/s, of which half is enough."""
    case = knowing(slow(exposed, 400 * LOW_LINK_FRAC - 1, NODES), model=LLAMA_8B)
    fires = result("PD103", case)
    assert (fires.state, fires.level) == ("fires", "information"), fires.reason
    assert settings_of(fires) == {
        "pad_buckets_for_high_nccl_busbw": True,
        "num_distributed_optimizer_instances": 2,
        "use_sharp": True,
        "nccl_ub": True,
        "nccl_debug": "INFO",
    }
    # 8.03e9 x 12 / 64 = 1.51e9 bytes, twice that with two instances.
    assert ": 1.40 GiB more on each GPU" in fires.advice[1].costs
    assert (gain_of(fires).method, gain_of(fires).high_ms) == ("ceiling", pytest.approx(0.1))
    assert result("PD103", slow(exposed, 400 * LOW_LINK_FRAC, NODES)).state == "passes"


def test_pd103_waiting_is_no_transfer(exposed: Case) -> None:
    """Half of the time in collectives was waiting: 150 GB/s seen are 300 while data moves."""
    case = slow(exposed, 150.0, NODES)
    wait = RankWait(
        rank=None,
        name="another rank",
        dimension="dp",
        collectives=2,
        own_ns=400_000,
        transfer_ns=200_000,
        wait_ns=200_000,
    )
    skew = replace(case.job.skew, state="measured", waits=[wait])
    found = result("PD103", replace(case, job=replace(case.job, skew=skew)))
    assert (found.state, found.evidence[-2].value) == ("passes", "300 GB/s")


@pytest.mark.parametrize(
    ("settings", "advised"),
    [
        ({"data_parallel_size": 8}, {"nccl_ub": True, "nccl_debug": "INFO"}),
        (
            {"data_parallel_size": 8, "nccl_nvls_enable": 0},
            {"nccl_nvls_enable": 1, "nccl_ub": True, "nccl_debug": "INFO"},
        ),
        ({"data_parallel_size": RING_RANKS - 2, "nccl_debug": "INFO"}, {"use_sharp": True, "nccl_ub": True}),
        (
            {
                "nccl_ub": True,
                "use_sharp": True,
                "nccl_debug": "TRACE",
                "reduce_scatter_with_fp32_accumulation": True,
            },
            {"pad_buckets_for_high_nccl_busbw": True},
        ),
        (
            {"pytorch_cuda_alloc_conf": "expandable_segments:True", "nccl_debug": "INFO", "use_sharp": True},
            {"pad_buckets_for_high_nccl_busbw": True, "num_distributed_optimizer_instances": 2},
        ),
    ],
)
def test_pd103_advises_what_fits(
    exposed: Case, settings: dict[str, Value], advised: dict[str, Value]
) -> None:
    assert settings_of(result("PD103", slow(exposed, 1.0, {**NODES, **settings}))) == advised


def test_pd103_abstains(exposed: Case) -> None:
    assert result("PD103", slow(exposed, None, NODES)).state == "skipped"
    assert result("PD103", having(exposed)).state == "skipped"
    assert result("PD103", slow(exposed, 1.0, {**NODES, "expert_model_parallel_size": 8})).state == "skipped"
    silent = {k: v for k, v in NODES.items() if k != "expert_model_parallel_size"}
    assert result("PD103", slow(exposed, 1.0, silent)).state == "skipped"
    assert result("PD103", slow(exposed, 1.0, {**silent, "num_moe_experts": None})).state == "fires"


def test_pd103_registers_no_buffers_on_ampere(tmp_path_factory: pytest.TempPathFactory) -> None:
    case = communicating(tmp_path_factory.mktemp("a100"), "dp", 100, gpu=A100)
    inside = {**NODES, "data_parallel_size": 8}
    assert settings_of(result("PD103", slow(case, 149.0, inside))) == {"nccl_debug": "INFO"}
    assert result("PD103", slow(case, 150.0, inside)).state == "passes"  # half of 300


INTERLEAVED: dict[str, Value] = {
    "pipeline_model_parallel_size": 4,
    "virtual_pipeline_model_parallel_size": 2,
    "overlap_param_gather": True,
    "align_param_gather": False,
    **SHARDED,
}
WITH_STEP = "overlap_param_gather_with_optimizer_step"


@pytest.mark.parametrize(
    ("settings", "state", "advised"),
    [
        ({}, "fires", {"align_param_gather": True}),
        ({**ONE, "pipeline_model_parallel_size": 4, "data_parallel_size": 1}, "not_applicable", {}),
        ({WITH_STEP: False}, "fires", {"align_param_gather": True, WITH_STEP: True}),
        ({WITH_STEP: False, "align_param_gather": True}, "fires", {WITH_STEP: True}),
        ({"align_param_gather": True}, "passes", {}),
        ({"overlap_param_gather": False}, "not_applicable", {}),
        ({"virtual_pipeline_model_parallel_size": None}, "not_applicable", {}),
        ({"pipeline_model_parallel_size": 1}, "not_applicable", {}),
    ],
)
def test_pd105(exposed: Case, settings: dict[str, Value], state: str, advised: dict[str, Value]) -> None:
    found = result("PD105", having(exposed, {**INTERLEAVED, **settings}))
    assert (found.state, settings_of(found)) == (state, advised)
    if state == "fires":
        assert found.level == "information"
        assert ("optimizer" in found.reason) == ("align_param_gather" not in advised)


def test_pd105_knows_what_it_does_not_know(exposed: Case) -> None:
    for left_out in ("pipeline_model_parallel_size", "overlap_param_gather", "align_param_gather"):
        settings = {k: v for k, v in INTERLEAVED.items() if k != left_out}
        assert result("PD105", having(exposed, settings)).state == "skipped", left_out
    bridge = having(exposed, {**INTERLEAVED, WITH_STEP: False}, "megatron_bridge")
    assert WITH_STEP not in settings_of(result("PD105", bridge))


def test_pd103_leaves_small_messages_to_pd101(exposed: Case) -> None:
    """100 us of a step are exposed: buckets that save a quarter of them are the cause."""
    case = slow(exposed, 1.0, NODES)
    for mid, low, state in ((0.025, 0.001, "passes"), (0.024, 0.001, "fires"), (0.05, 0.0, "fires")):
        found = result("PD103", predicting(case, buckets_x4=(low, mid, 0.06)))
        assert (found.state, "PD101" in found.reason) == (state, state == "passes"), (mid, low)


def test_a_job_of_no_ranks_has_no_replicas(exposed: Case) -> None:
    """A settings file may say anything; division by the replicas must not follow."""
    nobody: dict[str, Value] = {
        "nproc_per_node": 0,
        "nnodes": 1,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "use_distributed_optimizer": True,
        "use_precision_aware_optimizer": False,
        "bf16": True,
    }
    case = knowing(having(exposed, nobody), dp=None)
    assert case.dp is None
    for code in ("PD103", "PD312", "PD380", "PD503"):
        result(code, case)  # which fails where a rule throws
