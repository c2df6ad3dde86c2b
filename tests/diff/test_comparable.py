"""What is refused, what is compared with a word of warning, and which rank stands against which."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from perfdoc.compare.diff.pairing import NotComparableError
from perfdoc.compare.diff.two_sides import compare
from perfdoc.compare.side import Loaded
from perfdoc.results import CapabilityRow, Gpu, Rank
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import known_models
from tests.diff.sides import rank_of_steps, side
from tests.reports.build import ledger, rank, rule

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
