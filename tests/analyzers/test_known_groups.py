"""What one rank's capture knows of its process groups: by NCCL's payload, by Kineto's kernels and lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perfdoc.analyzers.communication.known_groups import CallGroup, GroupList
from perfdoc.simulator.captures.events import Collective
from perfdoc.simulator.captures.kineto import write_kineto
from perfdoc.simulator.captures.timeline import TimelineBuilder
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.calls_of import calls_of
from tests.analyzers.tiny import ALL_REDUCE


def test_kernels_tell_the_size_of_their_groups(tmp_path: Path) -> None:
    """One GPU in two groups of 4 and of 2, as the kernels' own metadata say; the capture lists no groups."""
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    device = process.device()
    for at, (name, ranks) in enumerate((("a", 4), ("b", 2), ("a", 4))):
        collective = Collective(operation="allreduce", group_name=name, ranks=tuple(range(ranks)))
        device.kernel(ALL_REDUCE, 1000 * at, 1000 * at + 500, collective=collective)
    trace = read_kineto(write_kineto(builder.build(), tmp_path / "x.json", process.pid))
    (calls,) = calls_of(replace(trace, groups=()))
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
