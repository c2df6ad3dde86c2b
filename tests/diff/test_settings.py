"""Settings that differ, and those whose difference nobody can tell."""

from __future__ import annotations

from perfdoc.compare.diff.result import Configuration
from perfdoc.compare.diff.two_sides import compare
from perfdoc.knobs.configuration import Configuration as Settings
from tests.diff.sides import rank_of_steps, side


def settings_of(one: Settings | None, two: Settings | None) -> Configuration:
    ranks = [rank_of_steps(0, [10])]
    return compare(side(ranks, configuration=one), side(ranks, configuration=two)).configuration


def test_values_defaults_and_unknowns() -> None:
    one = Settings(
        values={"micro_batch_size": 1, "tensor_model_parallel_size": 2, "bucket_size": 40_000_000},
        dialect="megatron_core",
        complete=True,
        unknown=frozenset({"seq_length"}),
    )
    two = Settings(
        values={"micro_batch_size": 2, "tensor_model_parallel_size": 2, "seq_length": 5},
        dialect="megatron_core",
        complete=True,
    )
    found = settings_of(one, two)
    rows = {s.knob: (s.before, s.after, s.before_set, s.after_set) for s in found.settings}
    assert rows.pop("micro_batch_size") == (1, 2, True, True)
    assert found.same == 1
    assert found.reason == "unknown: seq_length"
    assert "seq_length" not in rows
    assert all(not (before_set and after_set) for _, _, before_set, after_set in rows.values())
