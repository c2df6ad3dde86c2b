"""Changes are called what their reader knows: each has words, and their settings are in the catalogue."""

import pytest

from perfdoc.knobs.load import catalogue
from perfdoc.simulator.replay.edits.edit import Proposal
from perfdoc.simulator.replay.proposals import CHANGES, change_title, proposals
from tests.simulator.simulated import MOE, replayed, simulated

_EDITS_OWN = ("without ", "launched together", "norms alone", "peers", " x ", "overlapped")
"""Of the names by which edits know themselves."""


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Proposal]:
    """All that is tried on jobs which between them split in every way."""
    jobs = (
        simulated("pp=2,dp=2,vpp=2", steps=1),
        simulated("tp=2,cp=2,dp=2", "late_rank=1:1.3", steps=1),
        simulated("ep=2,dp=2", shape=MOE, steps=1),
    )
    found: dict[str, Proposal] = {}
    for i, job in enumerate(jobs):
        _, rebuilt = replayed(job, tmp_path_factory.mktemp(str(i)))
        found = {p.key: p for p in proposals(rebuilt)} | found
    return found


@pytest.mark.slow
def test_every_change_has_its_words(tried: dict[str, Proposal]) -> None:
    by_model = {key for key, change in CHANGES.items() if change.family == "schedule"}
    missing = {key for key in CHANGES if not key.startswith("without_straggler_")} - set(tried)
    assert missing == by_model
    for key, proposal in tried.items():
        assert "{" not in proposal.change, key
        assert not any(own in proposal.change for own in _EDITS_OWN), proposal.change
        assert proposal.change != key
    assert len({p.change for p in tried.values()}) == len(tried)


def test_settings_in_brackets_are_in_the_catalogue() -> None:
    named = [knob for change in CHANGES.values() for knob in change.settings.split(", ") if knob]
    assert len(named) > 10
    assert set(named) <= set(catalogue())


def test_parameters_stand_in_the_words(tried: dict[str, Proposal]) -> None:
    assert change_title("more_virtual_stages", ", 4 per rank").startswith("more virtual stages, 4 per rank (")
    assert tried["buckets_x4"].change == "DP buckets 4 times as large (bucket_size)"
    late = tried["without_straggler_dp"]
    assert late.edit is not None
    assert late.edit.late is not None
    assert late.change == f"{late.edit.late[0]} as fast as the rest of its DP group"


def test_a_rank_may_have_any_name() -> None:
    """Names come from captures: nothing in them is filled in."""
    name = "{0.__class__} {} (manual_gc)"
    assert change_title("without_straggler_dp", name).startswith(name + " as fast as")
    assert change_title("none of them {}", "x") == "none of them {}"
