"""PD340 to PD346: experts."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.results.kernels import PartTime
from perfdoc.results.what_if import WhatIfCause, no_what_if
from perfdoc.rules.checks import pd343_ep_across_nvlink as pd343
from perfdoc.rules.checks import pd344_shared_expert_in_line as pd344
from perfdoc.rules.checks import pd346_stages_instead_of_experts as pd346
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.culprit_words import does
from perfdoc.rules.facts.exposed import MIN_FRAC
from tests.planted.spec import JobSpec
from tests.rules.cases import evidence_of, gain_of, if_unset, result, settings_of
from tests.rules.planted_cases import MIXTRAL, on, planted_case, shaped, under, with_exposed

TP, PP, EP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"
ETP, VPP = "expert_tensor_parallel_size", "virtual_pipeline_model_parallel_size"
DISPATCHER, BACKEND = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"
OVERLAP, SHARED = "overlap_moe_expert_parallel_comm", "moe_shared_expert_overlap"
NOW: Mapping[str, Value] = {
    "num_moe_experts": 8,
    "num_layers": 32,
    TP: 1,
    PP: 1,
    VPP: None,
    "context_parallel_size": 1,
    EP: 4,
    ETP: 1,
    "data_parallel_size": 4,
    "global_batch_size": 128,
    "micro_batch_size": 1,
    "bf16": True,
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "cuda_graph_impl": "none",
    "mtp_num_layers": None,
    SHARED: False,
    DISPATCHER: "alltoall",
    OVERLAP: False,
    "delay_wgrad_compute": False,
}


@pytest.fixture(scope="module")
def ep4() -> Case:
    """Of the time 8 % are exposed EP communication."""
    spec = JobSpec(dp=4, ep=4, micro_batches=2, steps=2)
    return planted_case(spec)


@pytest.fixture(scope="module")
def pp4() -> Case:
    return planted_case(JobSpec(pp=4, micro_batches=8, steps=2))


@pytest.mark.parametrize("code", ["PD340", "PD341", "PD343", "PD344", "PD346"])
def test_dense_models_and_unknown_ones(code: str, ep4: Case) -> None:
    assert result(code, ep4).state == "skipped"
    assert result(code, under(ep4, {"num_moe_experts": None})).state == "not_applicable"


@pytest.mark.parametrize(
    ("changes", "state", "to"),
    [
        ({}, "passes", {}),
        ({ETP: 2, "data_parallel_size": 8}, "fires", {ETP: 1, EP: 8}),
        ({ETP: None, TP: 2, "sequence_parallel": True}, "fires", {ETP: 1, EP: 8}),
        ({ETP: 2, EP: 8, "data_parallel_size": 16}, "fires", {ETP: 1}),  # 16 do not divide 8 experts
        ({ETP: None, TP: None}, "passes", {}),
    ],
)
def test_pd340(ep4: Case, changes: dict[str, Value], state: str, to: dict[str, Value]) -> None:
    found = result("PD340", under(ep4, {**NOW, **changes}))
    assert (found.state, settings_of(found)) == (state, to)
    if EP in to:  # where the domain of NVLink is not known, ranks may be anywhere
        nowhere = under(replace(ep4, captures=[]), {**NOW, **changes})
        assert EP not in settings_of(result("PD340", nowhere))
    unknown = {k: v for k, v in NOW.items() if k != ETP}
    assert result("PD340", under(ep4, {**unknown, TP: 2})).state == "skipped"


@pytest.mark.parametrize(
    ("changes", "state", "to"),
    [
        ({"moe_grouped_gemm": False, "moe_permute_fusion": True}, "fires", {"moe_grouped_gemm": True}),
        (
            {"moe_grouped_gemm": False, EP: 8, "moe_permute_fusion": False},
            "fires",
            {"moe_permute_fusion": True},
        ),
        ({"moe_grouped_gemm": True, "moe_permute_fusion": True}, "passes", {}),
        ({"moe_grouped_gemm": False, EP: 8}, "passes", {}),  # one expert on each GPU
        ({}, "skipped", {}),
    ],
)
def test_pd341(ep4: Case, changes: dict[str, Value], state: str, to: dict[str, Value]) -> None:
    found = result("PD341", under(ep4, {**NOW, **changes}))
    assert (found.state, settings_of(found)) == (state, to)
    assert state != "fires" or (found.level, found.gain) == ("information", None)


def test_pd341_ceilings_are_measured(ep4: Case) -> None:
    """4 ms of grouped products and 1 ms of sorting in two steps of each rank: 2 and 0.5 ms a step."""
    sorting = PartTime(part="moe_dispatch", phase="forward", evidence="range", count=1, total_ns=1_000_000)
    ranks = []
    for r in ep4.ranks:
        parts = replace(r.kernel_parts, state="measured", grouped_linear_ns=4_000_000, parts=(sorting,))
        ranks.append(replace(r, kernel_parts=parts))
    case = replace(ep4, captures=[replace(ep4.captures[0], ranks=ranks)])
    both = {"moe_grouped_gemm": False, "moe_permute_fusion": False}
    for changes, high in ((both, 2.0), ({**both, "moe_grouped_gemm": True}, 0.5)):
        found = result("PD341", under(case, {**NOW, **changes}))
        assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(high))
        assert len(evidence_of(found)) == 3


@pytest.mark.parametrize(
    ("changes", "to"),
    [
        ({}, {OVERLAP: True, "delay_wgrad_compute": True}),
        ({DISPATCHER: "allgather"}, {DISPATCHER: "alltoall", OVERLAP: True, "delay_wgrad_compute": True}),
        ({SHARED: True, "moe_shared_expert_intermediate_size": 1024},
         {SHARED: False, OVERLAP: True, "delay_wgrad_compute": True}),
        ({"cuda_device_max_connections": 1},
         {"cuda_device_max_connections": 32, OVERLAP: True, "delay_wgrad_compute": True}),
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}, {}),
        ({PP: 2}, {}),  # needs virtual stages
        ({OVERLAP: True}, {}),
    ],
)  # fmt: skip
def test_pd342(ep4: Case, changes: dict[str, Value], to: dict[str, Value]) -> None:
    found = result("PD342", under(ep4, {**NOW, **changes}))
    assert (found.state, found.level, settings_of(found)) == ("fires", "problem", to)
    assert gain_of(found).method == "ceiling"
    assert to or "another micro-batch" in found.remedy


def test_pd342_says_whether_the_layer_could_hide_it(ep4: Case) -> None:
    """The exchange over attention and experts' GEMMs of as long: half."""
    total = sum(c.total_ns for r in ep4.ranks for c in r.communication if c.dimension == "ep")
    each = round(total / len(ep4.ranks))
    ranks = [
        replace(r, kernel_parts=replace(r.kernel_parts, attention_ns=each, grouped_linear_ns=each))
        for r in ep4.ranks
    ]
    found = result("PD342", replace(ep4, captures=[replace(ep4.captures[0], ranks=ranks)]))
    assert (found.evidence[-1].label, found.evidence[-1].value) == (
        "EP communication over attention and experts' GEMMs",
        "50 %",
    )


H100, GB200, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA GB200", "NVIDIA L40S"
WIDE: Mapping[str, Value] = {"num_moe_experts": 64, EP: 16, "data_parallel_size": 16}


@pytest.mark.parametrize(
    ("gpu", "changes", "state", "to"),
    [
        (H100, {}, "passes", {}),
        (H100, WIDE, "fires", {DISPATCHER: "flex", BACKEND: "deepep"}),
        (H100, {**WIDE, EP: 8, ETP: 2}, "fires", {DISPATCHER: "flex", BACKEND: "deepep"}),
        (H100, {**WIDE, SHARED: True, "moe_shared_expert_intermediate_size": 512}, "fires",
         {SHARED: False, DISPATCHER: "flex", BACKEND: "deepep"}),
        # What is on does not hide the exchange: what is left.
        (H100, {**WIDE, DISPATCHER: "flex"}, "fires", {OVERLAP: True}),
        (H100, {**WIDE, OVERLAP: True}, "fires", {DISPATCHER: "flex", BACKEND: "deepep"}),
        (H100, {**WIDE, OVERLAP: True, DISPATCHER: "flex"}, "fires", {EP: 8}),
        (GB200, WIDE, "passes", {}),
        (GB200, {**WIDE, "num_moe_experts": 128, EP: 128, "data_parallel_size": 128}, "fires",
         {DISPATCHER: "flex", BACKEND: "hybridep"}),
        (GB200, {DISPATCHER: "flex", BACKEND: "deepep"}, "fires", {BACKEND: "hybridep"}),
        (GB200, {DISPATCHER: "flex", BACKEND: "deepep", "moe_enable_deepep": True}, "fires",
         {"moe_enable_deepep": False, BACKEND: "hybridep"}),
        (GB200, {DISPATCHER: "flex", BACKEND: "hybridep"}, "passes", {}),
        (L40S, {}, "fires", {}),  # no NVLink at all, and no DeepEP
        ("NVIDIA H100 PCIe", WIDE, "skipped", {}),
    ],
)  # fmt: skip
def test_pd343(ep4: Case, gpu: str, changes: dict[str, Value], state: str, to: dict[str, Value]) -> None:
    found = result("PD343", under(on(ep4, gpu), {**NOW, **changes}))
    assert (found.state, settings_of(found)) == (state, to)


def test_pd343_level_and_smaller_groups(ep4: Case) -> None:
    for exposed, level in ((MIN_FRAC, "problem"), (MIN_FRAC - 0.001, "information")):
        found = result("PD343", under(with_exposed(ep4, "ep", exposed), {**NOW, **WIDE}))
        assert (found.state, found.level) == ("fires", level)
    assert "EP 8, which puts 2 times" in found.remedy
    for used in ({OVERLAP: True}, {DISPATCHER: "flex"}):
        for exposed, state in ((MIN_FRAC, "fires"), (MIN_FRAC - 0.001, "passes")):
            case = under(with_exposed(ep4, "ep", exposed), {**NOW, **WIDE, **used})
            assert result("PD343", case).state == state
    for exposed, state in ((pd343.HIDDEN_FRAC, "fires"), (pd343.HIDDEN_FRAC - 0.001, "passes")):
        found = result("PD343", under(with_exposed(ep4, "ep", exposed), {**NOW, **WIDE}))
        assert (found.state, "hidden" in found.reason) == (state, state == "passes")


def test_pd343_without_the_dispatcher(ep4: Case) -> None:
    unset = {k: v for k, v in {**NOW, **WIDE}.items() if k != DISPATCHER}
    wide = under(with_exposed(ep4, "ep", 0.74), unset)
    found = result("PD343", wide)
    assert (found.state, found.level) == ("fires", "problem")
    assert settings_of(found) == {DISPATCHER: "flex", BACKEND: "deepep"}
    assert all(piece.from_value is None for piece in found.advice)

    def by(transport: str) -> Case:
        ranks = [
            replace(r, communication=[replace(c, transport=transport) for c in r.communication])
            for r in wide.ranks
        ]
        return replace(wide, captures=[replace(wide.captures[0], ranks=ranks)])

    assert result("PD343", by("nccl")).state == "fires"
    for library in ("deepep", "hybridep", "uccl"):
        found = result("PD343", by(library))
        assert (found.state, library in found.reason) == ("passes", True)
    little = with_exposed(wide, "ep", MIN_FRAC - 0.001)
    old = result("PD343", under(little, {**unset, "moe_enable_deepep": True}))
    assert (old.state, old.reason) == ("passes", "the flex dispatcher is on")
    # No exchange was seen at all: nothing says what it is.
    unseen = [replace(r, communication=[]) for r in wide.ranks]
    assert (
        result("PD343", replace(wide, captures=[replace(wide.captures[0], ranks=unseen)])).state == "skipped"
    )


PADDED: Mapping[str, Value] = {"moe_pad_expert_input_to_capacity": True, "moe_expert_capacity_factor": 1.0}
FULL: Mapping[str, Value] = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


@pytest.mark.parametrize(
    ("changes", "to"),
    [
        (PADDED, {OVERLAP: True}),  # DeepEP takes no padding
        ({**PADDED, **FULL}, {EP: 8}),  # nor the overlap full recomputation
    ],
)  # fmt: skip
def test_pd343_advises_what_is_left(ep4: Case, changes: dict[str, Value], to: dict[str, Value]) -> None:
    case = under(with_exposed(ep4, "ep", MIN_FRAC), {**NOW, **WIDE, **changes})
    assert settings_of(result("PD343", case)) == to


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "fires"),
        ({SHARED: True}, "passes"),
        ({OVERLAP: True}, "passes"),
        ({DISPATCHER: "flex"}, "not_applicable"),
        ({"moe_shared_expert_intermediate_size": None}, "not_applicable"),
        ({EP: 1}, "not_applicable"),
    ],
)
def test_pd344(ep4: Case, changes: dict[str, Value], state: str) -> None:
    shared: dict[str, Value] = {**NOW, "moe_shared_expert_intermediate_size": 512}
    little = with_exposed(ep4, "ep", MIN_FRAC - 0.001)
    found = result("PD344", under(little, {**shared, **changes}))
    assert found.state == state
    assert settings_of(found) == ({SHARED: True} if state == "fires" else {})
    assert state != "fires" or found.level == "information"
    unknown = {k: v for k, v in shared.items() if k != SHARED}
    assert result("PD344", under(ep4, unknown)).state == "skipped"


def test_pd344_never_contradicts_pd342(ep4: Case, pp4: Case) -> None:
    """The two overlaps exclude one another: this one only where the other is not advised."""
    shared: dict[str, Value] = {**NOW, "moe_shared_expert_intermediate_size": 512}
    for changes, first in (({}, True), ({PP: 2}, False), ({OVERLAP: None}, True)):
        case = under(ep4, {**shared, **changes})
        both = [settings_of(result(code, case)) for code in ("PD342", "PD344")]
        assert (OVERLAP in both[0], SHARED in both[1]) == (first, not first), changes
    for exposed, state in ((pd344.MIN_FRAC, "fires"), (pd344.MIN_FRAC - 0.001, "passes")):
        assert result("PD344", under(with_exposed(ep4, "ep", exposed), shared)).state == state
    unseen = result("PD344", under(pp4, {**shared, PP: 4}))
    assert (unseen.state, "no EP communication" in unseen.reason) == ("skipped", True)


@pytest.mark.parametrize(
    ("changes", "state", "to"),
    [
        # 8 micro-batches: 3 / 11 of the step; one stage and four times the expert ranks: none.
        ({}, "fires", {PP: 1, EP: 8}),
        ({VPP: 2}, "fires", {VPP: None, PP: 1, EP: 8}),
        # Six experts go over 2 ranks, not over 8; over 4 neither.
        ({"num_moe_experts": 6}, "passes", {}),
        # Over 4 ranks: two stages of 4 micro-batches each, 1 / 5 instead of 3 / 11.
        ({"num_moe_experts": 4}, "fires", {PP: 2, EP: 4}),
        # 200 micro-batches a pipeline: 1.5 % of the step is too little to save.
        ({"global_batch_size": 800}, "passes", {}),
        ({"global_batch_size": 40}, "fires", {PP: 2, EP: 4}),  # 10 on each of 4; not over 16 replicas
        ({PP: 1}, "not_applicable", {}),
    ],
)
def test_pd346(pp4: Case, changes: dict[str, Value], state: str, to: dict[str, Value]) -> None:
    settings = {**NOW, PP: 4, EP: 2, "data_parallel_size": 4, "global_batch_size": 32}
    found = result("PD346", under(pp4, {**settings, **changes}))
    assert (found.state, settings_of(found)) == (state, to)
    assert pd346.MIN_SAVED_FRAC == 0.02
    if state == "fires":
        assert found.level == "information"
        assert gain_of(found).method == "ceiling"


def test_pd346_must_fit(pp4: Case) -> None:
    """Of 16 layers one stage and 8 expert ranks need 43 GB; all 32 need 83, 97 % of the device."""
    settings = {**NOW, PP: 4, EP: 2, "data_parallel_size": 4, "global_batch_size": 32, "seq_length": 512}
    settings |= {"use_distributed_optimizer": True}
    for layers, state in ((16, "fires"), (32, "passes")):
        case = under(with_exposed(pp4, "pp", 0.0), settings, model=shaped(MIXTRAL, layers=layers))
        assert result("PD346", case).state == state


def test_pd346_needs_a_bubble_and_a_domain(pp4: Case) -> None:
    settings = {**NOW, PP: 4, EP: 2, "data_parallel_size": 4, "global_batch_size": 32}
    for bubble, state in ((0.05, "fires"), (0.0499, "passes")):
        pipeline = replace(pp4.job.pipeline, bubble_frac=bubble)
        case = replace(pp4, job=replace(pp4.job, pipeline=pipeline))
        assert result("PD346", under(case, settings)).state == state
    assert result("PD346", under(on(pp4, "NVIDIA H100 PCIe"), settings)).state == "skipped"


KIND, WEIGHT, BIAS = "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_router_enable_expert_bias"
CAPACITY = "moe_expert_capacity_factor"
UNBALANCED: Mapping[str, Value] = {KIND: "aux_loss", WEIGHT: 0.0, BIAS: False, CAPACITY: None}


def with_uneven_experts(case: Case) -> Case:
    """Of a step of 1,000 ns 300 are for the busiest expert."""
    cause = WhatIfCause(
        kind="uneven_experts", peers=3, step_ns=700, saved_ns=300, low_ns=300, high_ns=300, ratio=2.0
    )
    found = replace(no_what_if(""), state="measured", steps=2, measured_ns=1000, step_ns=1000, causes=[cause])
    return replace(case, what_if=found)


@pytest.mark.parametrize(
    ("now", "advised"),
    [
        ({}, {WEIGHT: 0.01}),
        ({KIND: "none"}, {KIND: "aux_loss", WEIGHT: 0.01}),
        ({KIND: "none", WEIGHT: 0.01}, {KIND: "aux_loss"}),
        ({WEIGHT: 1e-3}, {WEIGHT: 0.01}),
        ({WEIGHT: 0.02}, {CAPACITY: 1.0}),
        ({BIAS: True, "moe_router_score_function": "sigmoid"}, {CAPACITY: 1.0}),
        ({WEIGHT: 0.02, CAPACITY: 1.25}, {}),
        ({KIND: "sinkhorn"}, {}),
        ({KIND: ("aux_loss", "seq_aux_loss"), WEIGHT: (1e-3, 1e-4)}, {CAPACITY: 1.0}),
        ({KIND: ("aux_loss", "seq_aux_loss"), WEIGHT: (0.0, 0.0)}, {WEIGHT: (0.01, 0.0)}),
        ({KIND: "none", WEIGHT: 0.02}, {KIND: "aux_loss"}),
        ({WEIGHT: 1}, {CAPACITY: 1.0}),
    ],
)
def test_uneven_experts_are_balanced_by_a_loss_and_capped_where_there_is_one(
    ep4: Case, now: Mapping[str, Value], advised: Mapping[str, Value]
) -> None:
    case = with_uneven_experts(under(ep4, {**NOW, **UNBALANCED, **now}))
    found = result("PD303", case)
    assert (settings_of(found), if_unset(found)) == (advised, {})
    assert (found.gain and found.gain.mid_ms) == 300 / 1e6
    assert all(a.costs for a in found.advice if a.knob != KIND)
    assert any(a.costs for a in found.advice) == bool(advised)
    # Each says of itself what it is about: the other one may not stand before it.
    assert all("load-balancing loss" in a.why for a in found.advice if a.knob != CAPACITY)
    assert all("nothing balances" not in a.why for a in found.advice if case.setting(WEIGHT)[1] == 1e-3)
    assert (CAPACITY in found.remedy) == (case.setting(CAPACITY)[1] is None)


def test_what_uneven_experts_cost_is_known_where_no_setting_is(ep4: Case) -> None:
    """PyTorch has none of Megatron's: 300 ns of a step of 1,000 all the same."""
    captures = [replace(capture, framework="pytorch") for capture in ep4.captures]
    case = with_uneven_experts(replace(ep4, captures=captures))
    found = result("PD303", replace(case, configuration=replace(case.configuration, dialect=None)))
    assert settings_of(found) == {}
    assert (found.gain and found.gain.mid_ms) == 300 / 1e6


def test_how_experts_are_balanced_without_settings_is_advice_if_they_are_not(ep4: Case) -> None:
    found = result("PD303", with_uneven_experts(ep4))
    assert (settings_of(found), if_unset(found)) == ({}, {KIND: "aux_loss", WEIGHT: 0.01})
    weight = next(a for a in found.advice if a.knob == WEIGHT)
    assert weight.dialects["megatron_lm"] == "--moe-aux-loss-coeff 0.01"
    assert weight.dialects["megatron_core"] == "TransformerConfig(moe_aux_loss_coeff=0.01)"


def test_who_has_most_tokens_is_named_without_a_rank_number() -> None:
    cause = WhatIfCause(
        kind="uneven_experts",
        captures=["GPU 0, pid 7"],
        ratio=1.8,
        peers=3,
        step_ns=1,
        saved_ns=1,
        low_ns=1,
        high_ns=1,
    )
    assert does(cause, no_what_if("")).endswith("attention alike (GPU 0, pid 7 has most)")
