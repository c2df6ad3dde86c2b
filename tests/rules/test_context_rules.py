"""PD120, PD122, PD383 and PD384: context parallelism, how far it goes, and long sequences without it."""

from dataclasses import replace

import msgspec
import pytest

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.knobs.knob import Value
from perfdoc.rules.checks.pd383_long_sequence_recompute import MIN_FRAC, MIN_TOKENS
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.context_parallel import TIMES, two_levels
from tests.rules.cases import gain_of, predicting, result, settings_of
from tests.rules.communicating import ATTENTION, LLAMA_8B, communicating, having, with_exposed, with_parts
from tests.rules.laid import knowing

CP8: dict[str, Value] = {
    "tensor_model_parallel_size": 1,
    "context_parallel_size": 8,
    "pipeline_model_parallel_size": 1,
    "data_parallel_size": 4,
    "num_attention_heads": 32,
    "num_query_groups": 8,
}
RING = {**CP8, "cp_comm_type": "p2p"}


BATCH_64: dict[str, Value] = {"global_batch_size": 64, "micro_batch_size": 1}
SMALLER = msgspec.structs.replace(LLAMA_8B, parameters=2_000_000_000)


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """CP communication of 200 us in each step of 1 ms, half of it exposed, beside 400 us of attention."""
    return communicating(tmp_path_factory.mktemp("cp"), "cp", 100, attention_us=400)


def lasting(case: Case, attention_us: float | None) -> Case:
    """The same beside so much attention in each of the two steps."""
    return with_parts(case, attention_ns=None if attention_us is None else round(2000 * attention_us))


@pytest.mark.parametrize(
    ("scheme", "attention_us", "level", "advised"),
    [
        ("a2a", 100, "problem", {"cp_comm_type": "p2p"}),
        ("all_gather", 200, "problem", {"cp_comm_type": "p2p"}),  # 200 us of transfer: just covered
        (
            "all_gather",
            199,
            "problem",
            {"hierarchical_context_parallel_sizes": (4, 2), "cp_comm_type": "a2a+p2p"},
        ),
        ("p2p", 200, "information", {}),
        (
            "p2p",
            199,
            "information",
            {"hierarchical_context_parallel_sizes": (4, 2), "cp_comm_type": "a2a+p2p"},
        ),
        ("p2p", None, "information", {}),
        (("p2p",) * 31 + ("a2a",), 100, "information", {"cp_comm_type": "p2p"}),
        (("p2p",) * 30 + ("a2a+p2p",) * 2, 100, "information", {}),
    ],
)
def test_pd120_by_scheme(
    exposed: Case, scheme: Value, attention_us: float | None, level: str, advised: dict[str, Value]
) -> None:
    found = result("PD120", having(lasting(exposed, attention_us), {**CP8, "cp_comm_type": scheme}))
    assert (found.state, found.level, settings_of(found)) == ("fires", level, advised)
    assert bool(found.remedy) != bool(advised)
    assert gain_of(found).method == "ceiling"


def test_pd120_knows_what_it_does_not_know(exposed: Case) -> None:
    found = result("PD120", having(exposed))
    assert (found.level, found.advice, "--config" in found.remedy) == ("information", [], True)


@pytest.mark.parametrize(
    ("attention_us", "to"), [(150, 4), (100, 4), (86, 4), (85, 2), (29, 2), (28, 1), (1, 1)]
)
def test_pd120_finds_the_largest_degree_that_attention_covers(
    exposed: Case, attention_us: float, to: int
) -> None:
    """200 us of transfer at 8 are 3/7 of it, 85.7 us, beside what attention takes now at 4, and 1/7, 28.6 us,
    at 2. One head of keys leaves no split in two levels."""
    settings: dict[str, Value] = {
        **RING,
        "num_query_groups": 1,
        "global_batch_size": 64,
        "micro_batch_size": 1,
    }
    found = result("PD120", having(lasting(exposed, attention_us), settings))
    assert settings_of(found) == {"context_parallel_size": to}
    # 16 samples on 8 replicas by ones, or on 16: two micro-batches or one. On 32 there are too few.
    batch: dict[str, Value] = {**settings, "global_batch_size": 16, "micro_batch_size": 1}
    allowed = [c for c in (4, 2, 1) if c <= to and 16 % (4 * 8 // c) == 0]
    found = result("PD120", having(lasting(exposed, attention_us), batch))
    assert settings_of(found) == ({"context_parallel_size": allowed[0]} if allowed else {})


def test_two_levels_of_a_group(exposed: Case) -> None:
    """Exchanged heads: as many ranks as a node of 8 holds beside TP, and as divide keys' heads."""
    for tp, cp, groups, expected in (
        (1, 16, 8, (8, 2)),
        (2, 16, 8, (4, 4)),
        (4, 16, 8, (2, 8)),
        (8, 16, 8, None),
        (1, 16, 4, (4, 4)),
        (1, 2, 8, None),
        (1, 6, 6, (2, 3)),  # 3 divides no 32 heads
        (1, 9, 9, None),
    ):
        settings = {**CP8, "tensor_model_parallel_size": tp, "num_query_groups": groups}
        assert two_levels(having(exposed, settings), cp) == expected, (tp, cp, groups)
    latent = {**CP8, "multi_latent_attention": True}
    assert two_levels(having(exposed, latent), 16) is None
    assert two_levels(having(exposed), 16) is None


ULYSSES = "ulysses_sequence_parallel_size"


@pytest.mark.parametrize(
    ("settings", "state", "to"),
    [
        ({ULYSSES: 8, "num_query_groups": 4, "nproc_per_node": 8}, "fires", 4),
        ({ULYSSES: 4, "num_query_groups": 4, "nproc_per_node": 8}, "passes", None),
        ({ULYSSES: 16, "num_query_groups": 32, "nproc_per_node": 8}, "fires", 8),
        ({ULYSSES: 8, "num_query_groups": 32, "nproc_per_node": 4}, "fires", 4),
        ({ULYSSES: 8, "num_query_groups": 6}, "fires", 2),  # 4 divides no 6 heads
        ({ULYSSES: 2, "multi_latent_attention": True}, "fires", 1),
        ({ULYSSES: 8}, "skipped", None),
        ({ULYSSES: 1}, "not_applicable", None),
        ({}, "not_applicable", None),
    ],
)
def test_pd122(exposed: Case, settings: dict[str, Value], state: str, to: int | None) -> None:
    found = result("PD122", having(exposed, settings, "verl"))
    assert (found.state, settings_of(found)) == (state, {} if to is None else {ULYSSES: to})
    assert found.level == "information" or state != "fires"


FULL: dict[str, Value] = {
    "seq_length": MIN_TOKENS,
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "context_parallel_size": 1,
    "data_parallel_size": 8,
}
SELECTIVE = {"recompute_granularity": "selective", "recompute_method": None, "recompute_num_layers": None}


def recomputing(case: Case, us: float | None) -> Case:
    return with_parts(case, recompute_ns=None if us is None else round(2000 * us))


@pytest.mark.parametrize(
    ("settings", "us", "state", "advised"),
    [
        ({}, 1000 * MIN_FRAC, "fires", {"context_parallel_size": 2, **SELECTIVE}),
        ({}, 1000 * MIN_FRAC - 1, "passes", {}),
        ({}, None, "skipped", {}),
        ({"seq_length": MIN_TOKENS - 1}, 100, "not_applicable", {}),
        ({"data_parallel_size": 7}, 100, "fires", {}),
        ({"context_parallel_size": 4096}, 100, "fires", {}),  # 8192 / (2 x 8192)
        ({**SELECTIVE}, 100, "fires", {"context_parallel_size": 2}),
        ({**SELECTIVE, "recompute_granularity": None}, 0, "passes", {}),
    ],
)
def test_pd383(
    exposed: Case, settings: dict[str, Value], us: float | None, state: str, advised: dict[str, Value]
) -> None:
    found = result("PD383", recomputing(having(exposed, {**FULL, **settings}), us))
    assert (found.state, settings_of(found)) == (state, advised), found.reason


def test_pd383_gain_is_a_ceiling(exposed: Case) -> None:
    case = recomputing(having(exposed, FULL), 100)
    found = result("PD383", predicting(case, without_recompute=(0.05, 0.06, 0.07))).gain
    assert found is not None
    assert (found.method, found.low_ms, found.mid_ms, found.high_ms) == ("ceiling", 0.0, None, 0.07)
    found = result("PD383", case).gain
    assert found is not None
    assert (found.method, found.high_ms) == ("ceiling", pytest.approx(0.1))
    assert result("PD383", having(exposed)).state == "skipped"


def test_pd383_divides_as_far_as_memory_asks(exposed: Case) -> None:
    """Weights, gradients and an eighth of the rest: 8,030,257,152 x 7.5 bytes, 56.1 GiB. On one context rank
    32 layers of 8,192 x 4,096 x 39 bytes, 39 GiB, and 11.7 of logits: on 2 ranks 81.5 GiB in all, on 4 68.8,
    on 8 62.4. 0.7 of the device is to hold it."""
    batch: dict[str, Value] = {"global_batch_size": 64, "micro_batch_size": 1, "num_moe_experts": None}
    more: dict[str, Value] = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
    settings = {**FULL, **batch, **more, "use_distributed_optimizer": True}
    case = knowing(recomputing(having(exposed, settings), 100), model=LLAMA_8B)
    for gib, to in ((117, 2), (116, 4), (99, 4), (98, 8), (90, 8), (89, None)):
        ranks = [replace(r, device=replace(r.device, memory_bytes=gib << 30)) for r in case.ranks]
        found = result("PD383", replace(case, captures=[replace(case.captures[0], ranks=ranks)]))
        assert found.state == "fires"
        assert settings_of(found) == ({} if to is None else {"context_parallel_size": to, **SELECTIVE}), gib


def test_pd383_leaves_what_memory_holds_to_pd504(exposed: Case) -> None:
    """Fused attention whose core is recomputed alone: that is needless whatever the length."""
    seen = with_parts(having(exposed, FULL), recompute_ns=200_000)
    assert result("PD383", seen).state == "fires"
    core: dict[str, Value] = {**FULL, **SELECTIVE, "recompute_modules": ("core_attn",)}
    fused = exposed.ranks[0].kernel_times[0]
    fused = replace(fused, name=ATTENTION, kernel_class=KernelClass.ATTENTION)
    ranks = [replace(r, kernel_times=[*r.kernel_times, fused]) for r in seen.ranks]
    case = having(replace(seen, captures=[replace(seen.captures[0], ranks=ranks)]), core)
    assert result("PD504", case).level == "problem"
    assert (result("PD383", case).state, "PD504" in result("PD383", case).reason) == ("passes", True)


SPLIT: dict[str, Value] = {
    "tensor_model_parallel_size": 4,
    "context_parallel_size": 2,
    "pipeline_model_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "data_parallel_size": 2,
    "num_attention_heads": 32,
    "use_distributed_optimizer": True,
}


@pytest.mark.parametrize(
    ("tp_us", "cp_us", "advised"),
    [
        (50.0, 50.0 / TIMES, {"tensor_model_parallel_size": 2, "context_parallel_size": 4}),
        (50.0, 50.0 / TIMES + 0.1, {}),
        (49.9, 0.0, {}),
        (20.0, 100.0, {"tensor_model_parallel_size": 8, "context_parallel_size": 1}),
    ],
)
def test_pd384(exposed: Case, tp_us: float, cp_us: float, advised: dict[str, Value]) -> None:
    case = knowing(with_exposed(having(exposed, SPLIT), tp=tp_us, cp=cp_us), model=LLAMA_8B)
    found = result("PD384", case)
    assert (found.state, settings_of(found)) == ("fires" if advised else "passes", advised)
    assert found.level == "information" or not advised


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden_size": 8192},  # sequences no longer than the model is wide
        {"tensor_model_parallel_size": 5},
        {"num_moe_experts": 8, "expert_model_parallel_size": 2},
        {"seq_length": 8196},  # not divisible by 2 x 4
    ],
)
def test_pd384_proposes_nothing_that_does_not_fit(exposed: Case, settings: dict[str, Value]) -> None:
    case = knowing(with_exposed(having(exposed, {**SPLIT, **settings}), tp=200, cp=0), model=LLAMA_8B)
    assert result("PD384", case).state == "passes"


def test_pd384_asks_whether_it_fits(exposed: Case) -> None:
    """8e9 parameters on TP 1 take 6 bytes each beside what the optimizer shards: 48 GB without
    activations."""
    batch: dict[str, Value] = {"global_batch_size": 2, "micro_batch_size": 1, "sequence_parallel": True}
    settings = {**SPLIT, **batch, "tensor_model_parallel_size": 2}
    case = knowing(with_exposed(having(exposed, settings), tp=200, cp=0), model=LLAMA_8B)
    for memory_gib, state in ((1000, "fires"), (48, "passes")):
        ranks = [replace(r, device=replace(r.device, memory_bytes=memory_gib << 30)) for r in case.ranks]
        assert (
            result("PD384", replace(case, captures=[replace(case.captures[0], ranks=ranks)])).state == state
        )


def test_pd384_down_to_one(exposed: Case) -> None:
    """Without tensor parallelism there is no sequence parallelism either."""
    settings: dict[str, Value] = {
        **SPLIT,
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "tp_comm_overlap": True,
    }
    case = knowing(with_exposed(having(exposed, settings), tp=200, cp=0), model=SMALLER)
    assert settings_of(result("PD384", case)) == {
        "tensor_model_parallel_size": 1,
        "context_parallel_size": 4,
        "sequence_parallel": False,
        "tp_comm_overlap": False,
    }


def test_pd384_stays_inside_the_node(exposed: Case) -> None:
    settings: dict[str, Value] = {**SPLIT, "tensor_model_parallel_size": 8}
    case = with_exposed(having(exposed, settings), tp=0, cp=200)
    assert result("PD384", case).state == "passes"
    # Four heads do not divide over eight ranks: neither half of the change is proposed.
    few = with_exposed(
        having(exposed, {**SPLIT, "num_attention_heads": 4, "num_moe_experts": None}), tp=0, cp=200
    )
    assert result("PD384", few).state == "passes"
    heads = {**SPLIT, "num_attention_heads": 8, "num_moe_experts": None}
    found = result("PD384", with_exposed(having(exposed, heads), tp=0, cp=200))
    assert settings_of(found) == {"tensor_model_parallel_size": 8, "context_parallel_size": 1}
    none = {**SPLIT, "tensor_model_parallel_size": 1, "context_parallel_size": 1}
    assert result("PD384", having(exposed, none)).state == "not_applicable"
    assert result("PD384", having(exposed)).state == "skipped"


def test_pd120_tells_a_ring_that_is_held_up(exposed: Case) -> None:
    """100 us of a step are exposed, and attention is short: a smaller group helps, unless the replay hides a
    quarter of it beside the attention that there is."""
    short = having(lasting(exposed, 100), {**RING, "num_query_groups": 1, **BATCH_64})
    for case, gain, method, to in (
        (short, (0.001, 0.025, 0.03), "replay", {}),
        (short, (0.001, 0.024, 0.03), "ceiling", {"context_parallel_size": 4}),
        (short, (0.0, 0.025, 0.03), "ceiling", {"context_parallel_size": 4}),
        (
            having(exposed, {**CP8, "cp_comm_type": "a2a"}),
            (0.001, 0.05, 0.06),
            "ceiling",
            {"cp_comm_type": "p2p"},
        ),
        (having(exposed), (0.001, 0.05, 0.06), "replay", {}),
    ):
        found = result("PD120", predicting(case, overlapped_cp=gain))
        assert (gain_of(found).method, settings_of(found)) == (method, to)
        assert ("blocks it" in found.remedy) == (method == "replay")
