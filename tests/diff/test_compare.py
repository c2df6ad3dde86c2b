"""Differences of two sides: parts that add up, kernels, settings, and what is refused or flagged."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdoc.compare.diff.pairing import NotComparableError
from perfdoc.compare.diff.result import Configuration
from perfdoc.compare.diff.two_sides import compare
from perfdoc.compare.side import KernelTotal, Loaded
from perfdoc.knobs.configuration import Configuration as Settings
from perfdoc.reports.leaves import LEAVES
from perfdoc.results import CapabilityRow, Gpu, KernelClass, Rank
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import known_models
from tests.amount import tries
from tests.diff.sides import rank_of_leaves, rank_of_steps, side
from tests.reports.build import ledger, rank, rule

_NS = st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 10**13))
_LEAVES = st.lists(_NS, min_size=len(LEAVES), max_size=len(LEAVES)).filter(any)
_SHAPE = st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))


@st.composite
def sides(draw: st.DrawFn) -> tuple[Loaded, Loaded]:
    count, steps_one, steps_two = draw(_SHAPE)

    def one(steps: int) -> Loaded:
        return side([rank_of_leaves(i, draw(_LEAVES), steps) for i in range(count)])

    return one(steps_one), one(steps_two)


@settings(max_examples=tries(25, 60))
@given(sides())
def test_every_table_adds_up_to_the_change(both: tuple[Loaded, Loaded]) -> None:
    found = compare(*both)
    assert sum(x.change_ns for x in found.leaves) == found.total.change_ns
    assert sum(x.before_ns for x in found.leaves) == found.total.before_ns
    assert sum(r.change_ns for r in found.ranks) == found.total.change_ns
    for r in found.ranks:
        assert sum(r.leaves_change_ns.values()) == r.change_ns
    assert found.kernels.total is not None
    assert sum(k.change_ns for k in found.kernels.classes) == found.kernels.total.change_ns
    # A rounded mean step is within half a nanosecond of the exact one, on every rank.
    for loaded, said in zip(both, (found.total.before_ns, found.total.after_ns), strict=True):
        exact = sum(r.window.duration_ns / r.window.steps for r in loaded.diagnosis.ranks)
        assert abs(said - exact) <= len(found.ranks) / 2 + exact * 1e-15


def test_two_ranks_by_hand() -> None:
    # Rank 0: 100 ns of compute to 90 and 20 of DP; rank 1: 100 ns to 120. Two steps of half that each.
    order = [leaf.path for leaf in LEAVES]

    def row(compute: int, dp: int) -> list[int]:
        return [{"compute": compute, "exposed_comm.dp": dp}.get(path, 0) for path in order]

    before = side([rank_of_leaves(0, row(200, 0), 2), rank_of_leaves(1, row(200, 0), 2)])
    after = side([rank_of_leaves(0, row(180, 40), 2), rank_of_leaves(1, row(240, 0), 2)])
    found = compare(before, after)
    assert {x.leaf: (x.before_ns, x.after_ns, x.change_ns) for x in found.leaves} == {
        "compute": (200, 210, 10),
        "exposed_comm.dp": (0, 20, 20),
    }
    assert [(r.label, r.change_ns, r.leaves_change_ns) for r in found.ranks] == [
        ("rank 0", 10, {"compute": -10, "exposed_comm.dp": 20}),
        ("rank 1", 20, {"compute": 20}),
    ]
    assert (found.mean.before_ns, found.mean.after_ns, found.mean.change_ns) == (100, 115, 15)
    assert found.outcome == "longer"
    assert "A step takes 115 ns, +15 ns (+15.0 %) against 100 ns before (mean over 2 ranks)." in found.verdict
    assert found.verdict.endswith("Most of it, summed over 2 ranks: exposed comm DP +20 ns, compute +10 ns.")


def with_kernels(steps: int, kernels: dict[str, tuple[int, int]], *, complete: bool = True) -> Loaded:
    """One rank whose kernels are (count, total in ns), all of one class."""
    made = side([rank_of_steps(0, [1000] * steps)])
    count, total = (sum(k[i] for k in kernels.values()) for i in (0, 1))
    classes = [KernelClass(name="gemm", count=count, total_ns=total, share_frac=1.0)]
    analysis = replace(made.diagnosis.analyses.kernels, classes=classes, top=[])
    analyses = replace(made.diagnosis.analyses, kernels=analysis)
    return replace(
        made,
        diagnosis=replace(made.diagnosis, analyses=analyses),
        kernels={n: KernelTotal(kernel_class="gemm", count=c, total_ns=t) for n, (c, t) in kernels.items()},
        kernels_complete=complete,
    )


def test_effects_by_hand() -> None:
    # Two steps each. "more": 10 -> 12 calls a step at 10 -> 20 ns each: 100 -> 240 ns a step.
    # By calls (12 - 10) * (10 + 20) / 2 = 30, by time the other 110.
    one = with_kernels(2, {"more": (20, 200), "often": (4, 40), "gone": (2, 60), "same": (2, 2)})
    two = with_kernels(2, {"more": (24, 480), "often": (8, 80), "new": (6, 600), "same": (2, 2)})
    found = {k.name: k for k in compare(one, two).kernels.kernels}
    assert {n: (k.status, k.change_ns, k.count_effect_ns, k.time_effect_ns) for n, k in found.items()} == {
        "new": ("appeared", 300, 300, 0),
        "more": ("slower", 140, 30, 110),
        "gone": ("gone", -30, -30, 0),
        "often": ("more_calls", 20, 20, 0),
    }
    assert (found["new"].calls_before, found["new"].calls_after) == (0, 3)
    (row,) = compare(one, two).kernels.classes
    assert (row.before_ns, row.after_ns, row.change_ns) == (151, 581, 430)


def test_a_list_of_the_longest_alone_says_nothing_of_the_others() -> None:
    one = with_kernels(1, {"a": (1, 10), "b": (1, 5)}, complete=False)
    two = with_kernels(1, {"a": (1, 12), "c": (1, 7)})
    found = {k.name: (k.status, k.change_ns) for k in compare(one, two).kernels.kernels}
    assert found == {"a": ("slower", 2), "c": ("not_listed", None), "b": ("gone", -5)}


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


STEPS = [100, 102]


def steps(*numbers: int | None) -> list[Rank]:
    return [replace(rank_of_steps(0, STEPS), rank=n, label=f"x{i}") for i, n in enumerate(numbers)]


def refusal(before: Loaded, after: Loaded) -> str:
    with pytest.raises(NotComparableError) as error:
        compare(before, after)
    assert "\n" not in str(error.value)
    assert "are not comparable: " in str(error.value)
    return str(error.value)


def codes(before: Loaded, after: Loaded) -> dict[str, str]:
    return {f.code: f.message for f in compare(before, after).flags}


def test_other_models_sizes_and_gpus_are_refused() -> None:
    shape = known_models()["llama3-8b"]
    one = side(steps(0), facts=JobFacts(model=shape))
    deeper = msgspec.structs.replace(shape, layers=shape.layers + 1)
    said = refusal(one, side(steps(0), facts=JobFacts(model=deeper)))
    assert f"the models differ in layers ({shape.layers}, {shape.layers + 1})" in said
    renamed = msgspec.structs.replace(shape, name="ours", sequence_length=17)
    compare(one, side(steps(0), facts=JobFacts(model=renamed)))
    assert "one job has 8 ranks, the other 16" in refusal(
        side(steps(0), world_size=8), side(steps(0), world_size=16)
    )
    other = [replace(r, gpu=Gpu(name="NVIDIA A100", sm_count=108, memory_bytes=1)) for r in steps(0)]
    assert "on NVIDIA H100 80GB HBM3, the other on NVIDIA A100" in refusal(side(steps(0)), side(other))


def test_steps_are_not_compared_with_a_capture() -> None:
    window = side([rank(0, ledger(compute=5))])
    assert "a step and a capture are not comparable" in refusal(side(steps(0)), window)
    mixed = side([*steps(0), rank(1, ledger(compute=5))])
    assert "differ in kind" in refusal(mixed, mixed)


def test_ranks_meet_by_number_or_by_place() -> None:
    found = compare(side(steps(0, 3)), side(steps(3, 5)))
    assert [r.label for r in found.ranks] == ["rank 3"]
    assert found.kernels.state == "not_measured"
    assert (
        "Compared: 1 rank present on both sides, of"
        in {f.code: f.message for f in found.flags}["ranks-left-out"]
    )
    assert "no rank in common" in refusal(side(steps(0)), side(steps(1)))
    by_place = compare(side(steps(None, None)), side(steps(None, None)))
    assert [r.label for r in by_place.ranks] == ["GPU 0, place 1", "GPU 0, place 2"]
    assert "1 and 2 ranks, not all with known" in refusal(side(steps(None)), side(steps(None, None)))


def test_what_differs_is_flagged() -> None:
    one = side(steps(0), versions={"torch": "2.12", "cuda": "13.1"})
    made = one.diagnosis
    other = replace(
        made,
        perfdoc_version="9",
        inputs=[replace(made.inputs[0], sha256="0", tool_version="2024.2")],
        capabilities=[
            CapabilityRow(input=0, name=c.name, available=True, reason="", remedy="")
            for c in made.capabilities
        ],
    )
    two = replace(one, diagnosis=other, versions={"torch": "2.13", "cuda": "13.1"})
    found = codes(one, two)
    assert "2026.3.1 and 2024.2" in found["profilers-differ"]
    assert "event_edges" in found["profiler-settings-differ"]
    assert found["versions-differ"] == "torch: 2.12 and 2.13."
    assert "perfdoc-differ" in found
    assert "same-captures" not in found
    assert "same-captures" in codes(one, one)
    assert "profilers-differ" not in codes(one, one)
    assert found["taken-on-trust"].endswith("the model, the number of ranks, the batch.")


def test_another_batch_is_compared_by_the_token() -> None:
    # 100 and 102 ns a step of 10 tokens; twice as many in the same time is half the time of a token.
    one = side(steps(0), facts=JobFacts(global_batch_sequences=2, sequence_length=5))
    two = side(steps(0), facts=JobFacts(global_batch_sequences=4, sequence_length=5))
    found = compare(one, two)
    assert found.per_token is not None
    assert (found.per_token.before_ns, found.per_token.after_ns) == (10.1, 5.05)
    assert found.per_token.change_frac == -0.5
    assert "10 tokens" in codes(one, two)["batch-differs"]
    assert compare(side(steps(0)), two).per_token is None


def test_rules_that_fire_on_one_side_alone_are_listed() -> None:
    one, two = side(steps(0)), side(steps(0))
    fires = replace(one, diagnosis=replace(one.diagnosis, rules=[rule("fires"), rule("passes", "PD102")]))
    rests = replace(two, diagnosis=replace(two.diagnosis, rules=[rule("passes"), rule("skipped", "PD102")]))
    assert [(r.code, r.before, r.after) for r in compare(fires, rests).rules] == [
        ("PD101", "fires", "passes")
    ]
