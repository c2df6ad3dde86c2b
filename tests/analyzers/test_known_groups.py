"""What one rank's capture knows of its process groups: by NCCL's payload, by Kineto's kernels and lists."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.communication.calls import collective_calls
from perfdoc.analyzers.communication.known_groups import CallGroup, GroupList
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.device_views import views_of
from tests.analyzers.tiny import ALL_REDUCE
from tests.captures.events import Collective
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder


def test_kernels_tell_the_size_of_their_groups(tmp_path: Path) -> None:
    """One GPU in two groups of 4 and of 2, as the kernels' own metadata say; the capture lists no groups."""
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    device = process.device()
    for at, (name, ranks) in enumerate((("a", 4), ("b", 2), ("a", 4))):
        collective = Collective(operation="allreduce", group_name=name, ranks=tuple(range(ranks)))
        device.kernel(ALL_REDUCE, 1000 * at, 1000 * at + 500, collective=collective)
    trace = read_kineto(write_kineto(builder.build(), tmp_path / "x.json", process.pid))
    (view,) = views_of(replace(trace, groups=()))
    calls = collective_calls(view)
    assert [(g.name, g.size) for g in calls.groups] == [("a", 4), ("b", 2)]
    assert calls.group.tolist() == [0, 1, 0]


def test_what_is_known_of_a_group_comes_together() -> None:
    """The communicator's creation says the size and the own place, the mark its ranks; names of another
    process say nothing."""
    known = GroupList(
        [
            CallGroup(communicator=0xA, size=2, own_in_group=1),
            CallGroup(communicator=0xA, name="1", description="TP", ranks=(4, 6), size=2),
            CallGroup(name="3", description="DP", ranks=(2, 6), size=2),
            CallGroup(description="PP", ranks=(5, 6), size=2),
        ],
        rank=6,
    )
    group = known.find(0xA, "", "")
    assert (group.description, group.ranks, group.size, group.own_in_group) == ("TP", (4, 6), 2, 1)
    assert known.find(0, "3", "DP").ranks == (2, 6)
    assert known.find(0, "3", "").ranks == (2, 6)
    assert known.find(0, "3", "TP").ranks == ()
    assert known.find(0, "9", "PP").ranks == (5, 6)
    assert known.find(0xB, "3", "DP").ranks == ()
    assert known.find(0, "9", "").size is None


def test_as_many_groups_as_kernels() -> None:
    """20,000 of 20,000 looked at each took minutes."""
    groups = [CallGroup(name=str(i), description="DP", ranks=(0, i)) for i in range(1, 20_000)]
    groups += [CallGroup(communicator=i, size=i) for i in range(1, 20_000)]
    known, begin = GroupList(groups, 0), time.process_time()
    assert all(known.find(0, str(i), "").ranks == (0, i) for i in range(1, 20_000))
    assert all(known.find(i, "", "").size == i for i in range(1, 20_000))
    assert time.process_time() - begin < 15


_TEXT = st.sampled_from(["", "a", "b"])
_KEYS = {"communicator": st.integers(0, 2), "name": _TEXT, "description": _TEXT}


@given(
    groups=st.lists(st.builds(CallGroup, **_KEYS, size=st.sampled_from([None, 2, 4])), max_size=6),
    asked=st.tuples(*_KEYS.values()),
)
def test_look_ups_find_what_a_look_at_all_finds(groups: list[CallGroup], asked: tuple[int, str, str]) -> None:
    communicator, name, description = asked

    def fits(other: CallGroup) -> bool:
        same = other.description == description
        if communicator:
            return other.communicator == communicator
        if other.name:
            return other.name == name and (same or not description or not other.description)
        return same and description != ""

    known = [g.size for g in groups if fits(g) and g.size is not None]
    assert GroupList(groups, None).find(*asked).size == next(iter(known), None)
