"""PD115 and PD116: groups across racks, and offloading beside network traffic."""

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.rules.checks.pd115_groups_across_racks import _cut
from perfdoc.rules.engine.case import Case
from tests.rules.cases import result, settings_of
from tests.rules.communicating import GB200, communicating, having, with_exposed
from tests.rules.laid import knowing


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """One GPU of an NVL72 rack, DP communication exposed for a tenth of each step."""
    return communicating(tmp_path_factory.mktemp("gb200"), "dp", 100, gpu=GB200)


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return communicating(tmp_path_factory.mktemp("h100"), "dp", 100)


def layout(tp: int, cp: int, dp: int, pp: int, ep: int = 1) -> dict[str, Value]:
    return {
        "tensor_model_parallel_size": tp,
        "context_parallel_size": cp,
        "data_parallel_size": dp,
        "pipeline_model_parallel_size": pp,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": 1,
    }


def groups_cut(block: int, world: int, rack: int) -> int:
    """Blocks of consecutive ranks that do not lie in one rack, one by one."""
    blocks = [range(at, min(at + block, world)) for at in range(0, world, block)]
    return sum(len({rank // rack for rank in ranks}) > 1 for ranks in blocks)


@pytest.mark.parametrize("rack_size", [8, 72])
@pytest.mark.parametrize("block", [1, 2, 3, 4, 7, 8, 16, 36, 64, 72])
def test_cut_blocks_are_counted(block: int, rack_size: int) -> None:
    for blocks in (1, 5, 9):
        expected = groups_cut(block, block * blocks, rack_size) if block <= rack_size else 0
        assert _cut(block, block * blocks, rack_size) == expected


@pytest.mark.parametrize(
    ("sizes", "state", "cut"),
    [
        # The guides' example: stages of 64 ranks end at 64, 128, 192, racks at 72, 144, 216.
        (layout(4, 1, 16, 4), "fires", ["3"]),
        (layout(4, 1, 18, 4), "passes", []),
        (layout(4, 1, 16, 1), "passes", []),  # 64 ranks: one rack
        (layout(1, 1, 256, 1), "passes", []),  # data parallelism alone
        (layout(8, 1, 32, 1), "passes", []),  # 72 / 8 = 9; stages of 256 fit into no rack
        (layout(16, 1, 16, 1), "fires", ["2"]),
        (layout(1, 16, 16, 1), "fires", ["2"]),
        (layout(1, 1, 64, 4, ep=16), "fires", ["2", "3"]),
    ],
)
def test_pd115(rack: Case, sizes: dict[str, Value], state: str, cut: list[str]) -> None:
    found = result("PD115", having(rack, sizes))
    assert found.state == state, found.reason
    assert [e.value for e in found.evidence if "split over two racks" in e.label] == cut
    if state == "fires":
        assert (found.level, "Use 64 GPUs per rack" in found.remedy) == ("information", True)


def test_pd115_where_64_does_not_help(rack: Case) -> None:
    found = result("PD115", having(rack, layout(5, 1, 10, 4)))
    assert (found.state, "Choose TP, CP and DP" in found.remedy) == ("fires", True)


@pytest.mark.parametrize(
    ("exposed_us", "layers", "advised"),
    [
        # Blocks of TP 4 x DP 12 are 48 of 72. Nearest is PP 4, DP 9: blocks of 36. Its bubble is 3/19 of
        # the step instead of 2/14, 1.5 % more, for 10 % exposed.
        (100.0, 36, {"pipeline_model_parallel_size": 4}),
        # For 1 % exposed it is not worth it: TP 8, PP 2, DP 9 fill a rack, with a bubble of 1/17.
        (10.0, 36, {"pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 8}),
        (100.0, 33, {}),  # 33 layers are 3 x 11
    ],
)
def test_pd115_finds_degrees_that_divide_a_rack(
    rack: Case, exposed_us: float, layers: int, advised: dict[str, Value]
) -> None:
    sizes = {key: value for key, value in layout(4, 1, 12, 3).items() if not key.startswith("data")}
    settings: dict[str, Value] = {
        **sizes,
        "world_size": 144,
        "num_moe_experts": None,
        "num_layers": layers,
        "num_attention_heads": 32,
        "global_batch_size": 144,
        "micro_batch_size": 1,
    }
    found = result("PD115", having(with_exposed(rack, dp=exposed_us), settings))
    assert (found.state, settings_of(found)) == ("fires", advised), found.reason
    then = {**settings, **settings_of(found)}
    tp, pp = then["tensor_model_parallel_size"], then["pipeline_model_parallel_size"]
    assert isinstance(tp, int)
    assert isinstance(pp, int)
    cut = groups_cut(144 // pp, 144, 72) + groups_cut(tp, 144, 72)
    assert (cut == 0) is bool(advised)


def test_pd115_abstains(rack: Case, hopper: Case) -> None:
    assert result("PD115", having(hopper, layout(4, 1, 16, 4))).state == "not_applicable"
    assert result("PD115", having(rack)).state == "skipped"
    other = {**layout(4, 1, 16, 4), "use_tp_pp_dp_mapping": True}
    placed = result("PD115", having(rack, other))
    assert (placed.state, "use_tp_pp_dp_mapping" in placed.reason) == ("skipped", True)
    dense = {k: v for k, v in layout(4, 1, 16, 4).items() if not k.startswith("expert")}
    assert result("PD115", having(rack, dense)).state == "skipped"
    assert result("PD115", having(rack, {**dense, "num_moe_experts": None})).state == "fires"
    told = {**layout(4, 1, 16, 4), "nvlink_domain_size": 8}
    assert result("PD115", having(rack, told)).state == "not_applicable"
    huge = layout(1 << 20, 1, 1 << 20, 1)
    assert result("PD115", having(rack, huge)).state == "skipped"


OFFLOADS: dict[str, Value] = {"cpu_offloading": True}
NO_OFFLOAD: dict[str, Value] = dict.fromkeys(
    ("cpu_offloading", "fine_grained_activation_offloading", "optimizer_cpu_offload"), False
)
LEVEL, C2C = "nccl_net_gdr_level", "nccl_net_gdr_c2c"


@pytest.mark.parametrize(
    ("settings", "state", "advised"),
    [
        (OFFLOADS, "fires", {}),
        ({"optimizer_cpu_offload": True, C2C: 0}, "fires", {C2C: 1}),
        ({**OFFLOADS, C2C: 1}, "passes", {}),
        ({**OFFLOADS, LEVEL: "PHB"}, "passes", {}),
        ({**OFFLOADS, LEVEL: "PIX"}, "fires", {LEVEL: "PHB"}),
        ({**OFFLOADS, LEVEL: "LOC", C2C: 0}, "fires", {C2C: 1, LEVEL: "PHB"}),
        (NO_OFFLOAD, "not_applicable", {}),
        ({}, "skipped", {}),
    ],
)
def test_pd116(rack: Case, settings: dict[str, Value], state: str, advised: dict[str, Value]) -> None:
    found = result("PD116", having(rack, settings))
    assert (found.state, settings_of(found)) == (state, advised)
    if state == "fires":
        assert (found.level, bool(advised) or "NCCL_NET_GDR_C2C=1" in found.remedy) == ("information", True)


@pytest.mark.parametrize(
    ("version", "settings", "state", "advised"),
    [
        ("2.25.1", {}, "fires", {LEVEL: "PHB"}),
        ("2.25.1", {C2C: 1}, "fires", {LEVEL: "PHB"}),  # no such variable yet
        ("2.25.1", {LEVEL: "PHB"}, "passes", {}),
        ("2.26.2", {}, "fires", {C2C: 1}),
        ("2.26.2", {C2C: 1}, "passes", {}),
        ("2.27.3", {}, "passes", {}),
        ("2.27.3", {C2C: 0}, "fires", {C2C: 1}),
    ],
)
def test_pd116_by_release(
    rack: Case, version: str, settings: dict[str, Value], state: str, advised: dict[str, Value]
) -> None:
    case = knowing(having(rack, {**OFFLOADS, **settings}), nccl_version=version)
    found = result("PD116", case)
    assert (found.state, settings_of(found)) == (state, advised)


def test_pd116_threshold_and_other_cpus(rack: Case, hopper: Case) -> None:
    for us, state in ((50.0, "fires"), (49.9, "passes")):
        assert result("PD116", having(with_exposed(rack, dp=us), OFFLOADS)).state == state
    assert result("PD116", having(hopper, OFFLOADS)).state == "not_applicable"
