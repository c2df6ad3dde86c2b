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
