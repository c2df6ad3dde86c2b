"""How ranks are arranged, and the rules that are checked before a process starts."""

from __future__ import annotations

from perfdoc.trainer.config import resolve
from perfdoc.trainer.layout import default_world_size, plan
from tests.trainer.overrides import EXPERTS, PLAIN, PP2, TP2


def test_sizes_and_batches() -> None:
    """8 ranks over TP 2 and PP 2 leave DP 2; 8 sequences over DP 2 in ones are 4 micro-batches per rank."""
    layout = plan(resolve("tiny", [*PLAIN, *TP2, *PP2]).config, 8, "cpu")
    assert (layout.tp, layout.cp, layout.dp, layout.pp, layout.vpp) == (2, 1, 2, 2, 1)
    assert layout.num_microbatches == 4


def test_groups_of_eight_ranks() -> None:
    """TP varies fastest, then DP, then PP: rank = tp + 2 dp + 4 pp."""
    groups = plan(resolve("tiny", [*PLAIN, *TP2, *PP2]).config, 8, "cpu").groups()
    assert groups["tp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups["dp"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups["pp"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups["cp"] == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert groups["dp_cp"] == groups["dp"]
    assert groups["ep"] == groups["cp"]
    assert groups["edp"] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_experts_spread_over_data_parallel_ranks() -> None:
    """4 ranks, DP 4, EP 2: each expert group takes neighbours; replicas of an expert are two apart."""
    layout = plan(resolve("tiny", [*PLAIN, *EXPERTS, "expert_model_parallel_size=2"]).config, 4, "cpu")
    assert (layout.dp, layout.ep, layout.edp) == (4, 2, 2)
    assert layout.groups()["ep"] == [[0, 1], [2, 3]]
    assert layout.groups()["edp"] == [[0, 2], [1, 3]]


def test_ranks_that_a_configuration_asks_for() -> None:
    assert default_world_size(resolve("tiny").config) == 2
    assert default_world_size(resolve("tiny", [*PLAIN, *TP2, *PP2]).config) == 4
    assert default_world_size(resolve("tiny", [*PLAIN, *EXPERTS, "expert_model_parallel_size=4"]).config) == 4
    both = [*PLAIN, *EXPERTS, "tensor_model_parallel_size=3", "expert_model_parallel_size=2"]
    assert default_world_size(resolve("tiny", both).config) == 6
