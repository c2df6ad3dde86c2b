"""What the report says of how near the replay comes to what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.reports.sections.replay import build as section_of
from perfdoc.results import Diagnosis
from tests.reports import build
from tests.reports.build_memory import with_memory_and_replay

MADE = with_memory_and_replay(build.two_ranks())


def on_cpu(made: Diagnosis, ranks: int) -> Diagnosis:
    """With the first ranks trained on the CPU."""
    cpu = [replace(r, gpu=replace(r.gpu, name="CPU")) for r in made.ranks[:ranks]]
    return replace(made, ranks=[*cpu, *made.ranks[ranks:]])


@pytest.mark.parametrize(
    ("ranks", "said"), [(0, ""), (1, "Ranks that train on the CPU"), (2, "Ranks that train on the CPU")]
)
def test_an_error_that_is_nothing_by_construction_is_said_to_be(ranks: int, said: str) -> None:
    section = section_of(on_cpu(MADE, ranks))
    assert section is not None
    words = " ".join(section.sentences)
    assert "Replay of the unedited" in words
    assert ("by construction" in words) == bool(said)
    assert said in words


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (["", ""], ""),
        (["", "the replay error is +31.0 %"], "for 1 rank: the replay error is +31.0 %."),
        (["no launches", "no launches"], "for 2 ranks: no launches."),
        (["no launches", "the replay error is +31.0 %"], "for 2 ranks: for example, no launches."),
    ],
)
def test_predictions_are_withheld_for_the_replays_own_reason(reasons: list[str], said: str) -> None:
    ranks = [
        replace(rank, replay=replace(rank.replay, predicts=not reason, withheld=reason))
        for rank, reason in zip(MADE.ranks, reasons, strict=True)
        if rank.replay is not None
    ]
    section = section_of(replace(MADE, ranks=ranks))
    assert section is not None
    words = " ".join(section.sentences)
    assert ("No changes are predicted" in words) == bool(said)
    assert said in words
