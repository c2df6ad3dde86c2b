"""PD310, PD312 to PD316: how far the model is split, and over which links."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts import smaller_mapping
from perfdoc.rules.facts.exposed import MIN_FRAC
from perfdoc.rules.facts.memory_need import FIT_FRAC
from perfdoc.traces.known_models import known_models
from tests.planted.spec import JobSpec
from tests.rules.cases import evidence_of, gain_of, result, settings_of
from tests.rules.planted_cases import LLAMA, on, planted_case, shaped, under, with_exposed

TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
VPP, SP = "virtual_pipeline_model_parallel_size", "sequence_parallel"
SMALL = shaped(LLAMA, layers=8)
"""2.8 billion parameters."""
NOW: Mapping[str, Value] = {
    TP: 2,
    PP: 1,
    CP: 1,
    VPP: None,
    SP: True,
    "data_parallel_size": 2,
    "global_batch_size": 64,
    "micro_batch_size": 1,
    "use_distributed_optimizer": True,
    "num_moe_experts": None,
    "num_layers": 8,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "seq_length": 8192,
}


@pytest.fixture(scope="module")
def tp2() -> Case:
    """Of the time 7 % are exposed TP communication, 4 % DP."""
    return planted_case(JobSpec(tp=2, dp=2, micro_batches=2, steps=2))


@pytest.fixture(scope="module")
def cp2() -> Case:
    spec = JobSpec(cp=2, dp=2, micro_batches=2, steps=2)
    return planted_case(spec)


@pytest.mark.parametrize("code", ["PD310", "PD312", "PD313", "PD314", "PD315", "PD316"])
def test_what_is_not_known_is_skipped(code: str, tp2: Case) -> None:
    assert result(code, tp2).state == "skipped"


def test_pd310_takes_the_least_that_fits(tp2: Case) -> None:
    """2.8 billion parameters: 6 + 12 / 4 bytes, 23.6 GiB; activations of 8,192 tokens 9.7, logits 11.7."""
    found = result("PD310", under(tp2, NOW, model=SMALL))
    assert (found.state, found.level) == ("fires", "information")
    assert settings_of(found) == {SP: False, TP: 1}
    assert found.evidence[2].label == "with TP 1, PP 1, DP 4"
    assert 40 < float(found.evidence[2].value.split()[0]) < 50
    assert gain_of(found).method == "ceiling"


def test_pd310_thresholds(tp2: Case) -> None:
    sure = with_exposed(under(tp2, NOW, model=SMALL), "dp", 0.0)
    for exposed, state in ((smaller_mapping.MIN_FRAC, "fires"), (smaller_mapping.MIN_FRAC - 0.001, "passes")):
        assert result("PD310", with_exposed(sure, "tp", exposed)).state == state
    found = result("PD310", sure)
    need = float(found.evidence[2].value.split()[0]) * 2**30
    for memory, state in ((need * 1.01 / FIT_FRAC, "fires"), (need * 0.98 / FIT_FRAC, "passes")):
        ranks = [replace(r, device=replace(r.device, memory_bytes=round(memory))) for r in sure.ranks]
        small = replace(sure, captures=[replace(sure.captures[0], ranks=ranks)])
        assert result("PD310", small).state == state


def test_pd310_minds_what_data_parallelism_would_cost(tp2: Case) -> None:
    """On one tensor rank a GPU has twice the gradients to reduce: what is exposed of them doubles."""
    case = with_exposed(under(tp2, NOW, model=SMALL), "tp", 0.06)
    for exposed, state in ((0.059, "fires"), (0.061, "passes")):
        assert result("PD310", with_exposed(case, "dp", exposed)).state == state


def test_pd310_large_models_stay_split(tp2: Case) -> None:
    """All of it, 32 layers: 70 GiB of states."""
    found = result("PD310", under(tp2, {**NOW, "num_layers": 32}, model=LLAMA))
    assert (found.state, found.reason) == ("passes", "no smaller mapping is certain to fit and to gain")


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"global_batch_size": 6}, "passes"),  # not over four replicas
        ({"global_batch_size": None}, "skipped"),
        ({TP: 1, SP: False, "data_parallel_size": 4}, "not_applicable"),
        ({"use_megatron_fsdp": True}, "not_applicable"),
        ({"data_parallel_size": None}, "fires"),  # as the captures show
    ],
)
def test_pd310_never_guesses(tp2: Case, changes: dict[str, Value], state: str) -> None:
    assert result("PD310", under(tp2, {**NOW, **changes}, model=SMALL)).state == state


def test_pd310_stages_go_first(tp2: Case) -> None:
    """Two stages of two tensor ranks: one GPU fits all, so both go, and the chunks with the stages."""
    settings = {**NOW, PP: 2, VPP: 2, "data_parallel_size": 1}
    tp2 = with_exposed(tp2, "dp", 0.0)
    assert settings_of(result("PD310", under(tp2, settings, model=SMALL))) == {
        VPP: None,
        PP: 1,
        SP: False,
        TP: 1,
    }
    # What works between chunks only goes with them.
    overlapped = {**settings, "overlap_p2p_comm": True, "overlap_p2p_comm_warmup_flush": True}
    found = settings_of(result("PD310", under(tp2, overlapped, model=SMALL)))
    assert (found[VPP], found["overlap_p2p_comm"], found["overlap_p2p_comm_warmup_flush"]) == (
        None,
        False,
        False,
    )
    # And what needs a tensor-parallel group with that.
    assert settings_of(result("PD310", under(tp2, {**NOW, "tp_comm_overlap": True}, model=SMALL))) == {
        "tp_comm_overlap": False,
        SP: False,
        TP: 1,
    }
    # Three times as many layers fit on two GPUs: tensor ranks then, and no stages.
    larger = shaped(LLAMA, layers=12)
    found = result("PD310", under(tp2, {**settings, "num_layers": 12}, model=larger))
    assert settings_of(found) == {VPP: None, PP: 1}


def test_pd312(tp2: Case) -> None:
    off = under(tp2, {**NOW, "use_distributed_optimizer": False}, model=SMALL)
    found = result("PD312", off)
    assert (found.state, settings_of(found)) == ("fires", {"use_distributed_optimizer": True})
    # (8 x 218,112,000 + 2 x 525,336,576) / 2 parameters, of 12 bytes a half: 7.81 GiB.
    assert evidence_of(found) == ["2", "7.81 GiB"]
    assert result("PD312", under(tp2, NOW, model=SMALL)).state == "passes"
    alone = under(tp2, {**NOW, "data_parallel_size": 1})
    assert result("PD312", alone).state == "not_applicable"
    assert result("PD312", under(tp2, {**NOW, "use_torch_fsdp2": True})).state == "not_applicable"


@pytest.mark.parametrize(
    ("gpu", "tp", "on_server", "state", "to"),
    [
        ("NVIDIA H100 80GB HBM3", 8, None, "passes", {}),
        ("NVIDIA H100 80GB HBM3", 16, None, "fires", {TP: 8, PP: 2}),
        ("NVIDIA H100 80GB HBM3", 8, 4, "fires", {TP: 4, PP: 2}),
        ("NVIDIA GB200", 16, 4, "fires", {TP: 8, PP: 2}),  # 72 is not a multiple of 16
        ("NVIDIA GB200", 8, 4, "passes", {}),
        ("NVIDIA L40S", 2, None, "fires", {SP: False, TP: 1, PP: 2}),
        ("NVIDIA H100 PCIe", 8, None, "skipped", {}),  # bridges: nobody knows
    ],
)
def test_pd313_nvlink_domains(
    tp2: Case, gpu: str, tp: int, on_server: int | None, state: str, to: dict[str, Value]
) -> None:
    settings = {**NOW, TP: tp, **({} if on_server is None else {"nproc_per_node": on_server, "nnodes": 8})}
    found = result("PD313", under(on(tp2, gpu), settings))
    assert (found.state, settings_of(found)) == (state, to)


def test_pd313_level_and_stages_that_do_not_divide(tp2: Case) -> None:
    for exposed, level in ((MIN_FRAC, "problem"), (MIN_FRAC - 0.001, "information")):
        found = result("PD313", under(with_exposed(tp2, "tp", exposed), {**NOW, TP: 16}))
        assert (found.state, found.level) == ("fires", level)
    odd = result("PD313", under(tp2, {**NOW, TP: 16, "num_layers": 9}))
    assert (odd.advice, "divides 8" in odd.remedy) == ([], True)
    one = result("PD313", under(tp2, {**NOW, TP: 1, SP: False}))
    assert one.state == "not_applicable"


@pytest.mark.parametrize(
    ("changes", "to"),
    [
        ({TP: 4}, {TP: 2, CP: 2}),  # 8,192 tokens, 4,096 wide
        ({TP: 4, "seq_length": 4096}, {}),
        ({TP: 8, "seq_length": 4096, "overlap_p2p_comm": True},
         {TP: 4, PP: 2, VPP: 2, "batch_p2p_comm": False}),
        ({TP: 8, "seq_length": 4096, "overlap_p2p_comm": False},
         {TP: 4, PP: 2, "overlap_p2p_comm": True, VPP: 2, "batch_p2p_comm": False}),
        ({TP: 8, "seq_length": 4096, "global_batch_size": 16}, {}),  # 8 micro-batches: a bubble of 1 / 17
        ({TP: 8, "seq_length": 4096, PP: 2}, {}),
    ],
)  # fmt: skip
def test_pd314_other_mappings(tp2: Case, changes: dict[str, Value], to: dict[str, Value]) -> None:
    case = with_exposed(under(tp2, {**NOW, **changes}), "tp", 0.10)
    found = result("PD314", case)
    assert (found.state, found.level, settings_of(found)) == ("fires", "information", to)
    assert found.remedy


def test_of_the_rules_on_wide_tp_one_speaks(tp2: Case) -> None:
    """2.8 billion parameters fit on one tensor rank, 8 on two with context ranks besides (8,192 tokens, 4,096
    wide), 12 on two of four context ranks, 70 on neither; and 16 ranks are more than an NVLink domain."""
    codes = ("PD310", "PD313", "PD314", "PD384")
    large = known_models()["llama3-70b"]
    for changes, model, fires, to in (
        ({}, SMALL, "PD310", {SP: False, TP: 1}),
        ({}, LLAMA, "PD314", {TP: 2, CP: 2}),
        ({CP: 2}, shaped(LLAMA, layers=52), "PD384", {TP: 2, CP: 4}),
        ({}, large, "PD314", {}),
        ({TP: 16}, large, "PD313", {TP: 8, PP: 2}),
    ):
        case = with_exposed(with_exposed(tp2, "tp", 0.10), "dp", 0.0)
        case = under(case, {**NOW, TP: 4, **changes}, model=model)
        found = {code: result(code, case) for code in codes}
        assert [code for code in codes if found[code].state == "fires"] == [fires], changes
        assert settings_of(found[fires]) == to
        assert fires == "PD314" or fires in found["PD314"].reason


def test_pd313_adds_no_stages_whose_bubble_costs_more(tp2: Case) -> None:
    """32 micro-batches on two stages: a bubble of 1 / 33 of the step."""
    for exposed, to in ((0.031, {TP: 8, PP: 2}), (0.030, {})):
        found = result("PD313", under(with_exposed(tp2, "tp", exposed), {**NOW, TP: 16}))
        assert (found.state, settings_of(found)) == ("fires", to)


def test_what_would_not_fit_is_not_proposed(cp2: Case) -> None:
    """Activations of 16 sequences on one GPU; nor what leaves a pipeline with too few micro-batches."""
    short = {**NOW, TP: 1, SP: False, CP: 2, "seq_length": 4088, "global_batch_size": 64}
    for size, to in ((1, {CP: 1}), (16, {})):
        found = result("PD316", under(cp2, {**short, "micro_batch_size": size}, model=SMALL))
        assert (found.state, settings_of(found)) == ("fires", to)
        assert to or "data parallelism" in found.remedy
    # On two stages 8 micro-batches become 4 on each of twice the replicas: 1 / 5 of the step, not 1 / 9.
    few = under(cp2, {**short, PP: 2, "data_parallel_size": 1, "global_batch_size": 8}, model=SMALL)
    for exposed, to in ((0.2 - 1 / 9 + 0.001, {CP: 1}), (0.2 - 1 / 9 - 0.001, {})):
        assert settings_of(result("PD316", with_exposed(few, "cp", exposed))) == to


def test_pd314_waits_for_the_overlap(tp2: Case) -> None:
    """What is exposed without any overlap says little of the mapping; a local layer has none to switch on."""
    case = with_exposed(tp2, "tp", 0.10)
    for changes, state in (
        ({"tp_comm_overlap": False}, "passes"),
        ({"tp_comm_overlap": True}, "fires"),
        ({"tp_comm_overlap": False, "transformer_impl": "local"}, "fires"),
    ):
        found = result("PD314", under(case, {**NOW, TP: 8, **changes}))
        assert (found.state, "PD111" in found.reason) == (state, state == "passes")


def test_pd314_threshold(tp2: Case) -> None:
    case = under(tp2, {**NOW, TP: 4, "seq_length": 4096})
    for exposed, state in ((MIN_FRAC, "fires"), (MIN_FRAC - 0.001, "passes")):
        assert result("PD314", with_exposed(case, "tp", exposed)).state == state
    assert result("PD314", under(tp2, NOW)).state == "passes"  # two ranks: a matter of memory
    assert result("PD314", under(tp2, {**NOW, TP: 1, SP: False})).state == "not_applicable"


def idle(case: Case, frac: float) -> Case:
    ranks = []
    for r in case.ranks:
        ns = -(-round(r.ledger.total * frac * 1000) // 1000)
        more = ns - r.ledger.idle.host
        ledger = replace(r.ledger, idle=replace(r.ledger.idle, host=ns), compute=r.ledger.compute - more)
        ranks.append(replace(r, ledger=ledger))
    return replace(case, captures=[replace(case.captures[0], ranks=ranks)])


def test_pd315_starved(tp2: Case) -> None:
    settings = {**NOW, TP: 8, "data_parallel_size": 1}
    tp2 = with_exposed(tp2, "tp", 0.0)
    wide = under(tp2, settings, model=SMALL)
    found = result("PD315", idle(wide, 0.0501))
    assert (found.state, settings_of(found)) == ("fires", {TP: 4})
    assert result("PD315", idle(wide, 0.0499)).state == "passes"
    assert result("PD315", idle(under(tp2, {**settings, TP: 4}, model=SMALL), 0.2)).state == "not_applicable"
    # 1.6 us from one launch to the next, as long as a kernel: no smaller ones would run dry.
    for kernel_ns, starved in ((1_599, "fires"), (1_600, "passes")):
        ranks = []
        for r in idle(wide, 0.2).ranks:
            small = replace(r.host.small_kernels, median_kernel_ns=kernel_ns, median_launch_interval_ns=1_600)
            ranks.append(replace(r, host=replace(r.host, small_kernels=small)))
        case = replace(wide, captures=[replace(wide.captures[0], ranks=ranks)])
        assert result("PD315", case).state == starved
    # A model that is not known to fit with half the ranks.
    unknown = result("PD315", idle(under(tp2, settings), 0.2))
    assert (unknown.state, unknown.advice, "stages" in unknown.remedy) == ("fires", [], True)


@pytest.mark.parametrize(
    ("sequence", "batch", "state", "to"),
    [(4096, 64, "passes", {}), (4088, 64, "fires", {CP: 1}), (4088, 6, "fires", {})],
)
def test_pd316_short_sequences(
    cp2: Case, sequence: int, batch: int, state: str, to: dict[str, Value]
) -> None:
    settings = {**NOW, TP: 1, SP: False, CP: 2, "seq_length": sequence, "global_batch_size": batch}
    found = result("PD316", under(cp2, settings))
    assert (found.state, settings_of(found)) == (state, to)
    if state == "fires":
        problem = result("PD316", with_exposed(under(cp2, settings), "cp", MIN_FRAC))
        less = result("PD316", with_exposed(under(cp2, settings), "cp", MIN_FRAC - 0.001))
        assert (problem.level, less.level) == ("problem", "information")
    assert result("PD316", under(cp2, {**settings, CP: 1})).state == "not_applicable"


def test_what_was_not_seen_is_no_zero(tp2: Case) -> None:
    """A capture without any CP communication bounds no gain of less of it."""
    found = result("PD316", under(tp2, {**NOW, CP: 2, "seq_length": 4088}))
    assert (found.state, found.level, found.gain) == ("fires", "information", None)
    assert evidence_of(found)[-1] == "none known in the capture"
