"""How a job is spread over its ranks, from small tables of what each rank uses its groups for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.communication.known_groups import CallGroup
from perfdoc.analyzers.job import measure_job
from perfdoc.analyzers.layout.degrees import filled, find_degrees
from perfdoc.analyzers.layout.job_uses import GroupUse, RankUses
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import measure_all
from perfdoc.results.degrees import Degree
from perfdoc.simulator.captures.groups import groups_of
from perfdoc.simulator.forward.layout import Layout
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.job_facts import JobFacts

NO_FACTS = JobFacts()


def use(
    dimension: str, group: CallGroup, *, evidence: str = "pattern", operation: str = "all_reduce"
) -> GroupUse:
    return GroupUse(
        group=group,
        lane=-1 if group.name or group.communicator or group.ranks else 0,
        dimension=dimension,
        evidence=evidence,
        said_by=group.description,
        operation=operation,
        count=10,
        most_bytes=1 << 20,
    )


def named(description: str, *, size: int | None = None, ranks: tuple[int, ...] = ()) -> CallGroup:
    return CallGroup(name="7", description=description, size=size or len(ranks) or None, ranks=ranks)


def found(
    ranks: Sequence[RankUses], facts: JobFacts = NO_FACTS, world: int | None = None
) -> dict[str, int | None]:
    return {d.name: d.ranks for d in find_degrees(ranks, facts, world)}


def of(degrees: Sequence[Degree], name: str) -> Degree:
    return next(d for d in degrees if d.name == name)


def test_sizes_of_named_groups_and_arithmetic() -> None:
    """128 ranks, pipelines of 2, 32 replicas in a group that may hold context parallelism: 128 / (2 x 32) = 2
    ranks share a layer, though no capture shows them talk; nothing communicates for cp, so all 32 are dp."""
    uses = [
        use("pp", named("PIPELINE_MODEL_PARALLEL_GROUP", size=2), operation="send"),
        use("dp", named("DATA_PARALLEL_GROUP_WITH_CP", size=32), operation="reduce_scatter"),
    ]
    degrees = find_degrees([RankUses(rank=0, uses=uses)], NO_FACTS, 128)
    assert {d.name: (d.ranks, d.strength) for d in degrees} == {
        "world_size": (128, "named"),
        "tp": (2, "derived"),
        "cp": (1, "derived"),
        "ep": (1, "derived"),
        "dp": (32, "derived"),
        "pp": (2, "named"),
    }
    assert "DATA_PARALLEL_GROUP_WITH_CP" in of(degrees, "dp").evidence[0]


@pytest.mark.parametrize(
    ("groups", "world", "expected"),
    [
        # torchtitan: 2 replicas of 4 shards that hold cp 2, tp 4: 2 x (4 / 2) = 4 replicas of the model.
        (
            {"mesh_dp_replicate": ("dp", 2), "mesh_dp_shard_cp": ("dp", 4)}
            | {"mesh_cp": ("cp", 2), "mesh_tp": ("tp", 4)},
            32,
            {"tp": 4, "cp": 2, "dp": 4, "pp": 1},
        ),
        # Without a group of replicas there is one.
        ({"mesh_dp_shard": ("dp", 4), "mesh_tp": ("tp", 2)}, 8, {"tp": 2, "cp": 1, "dp": 4, "pp": 1}),
        # Megatron's experts: ep 4 of 8 replicas.
        (
            {"EXPERT_MODEL_PARALLEL_GROUP": ("ep", 4), "DATA_PARALLEL_GROUP": ("dp", 8)}
            | {"EXPERT_DATA_PARALLEL_GROUP": ("dp", 2)},
            8,
            {"tp": 1, "cp": 1, "dp": 8, "pp": 1, "ep": 4},
        ),
        # tp x pp is 8 and pp 4; whose the other 2 are nothing shows.
        (
            {"MODEL_PARALLEL_GROUP": ("other", 8), "PIPELINE_MODEL_PARALLEL_GROUP": ("pp", 4)},
            16,
            {"tp": 2, "pp": 4, "cp": None, "dp": None},
        ),
    ],
)  # fmt: skip
def test_frameworks(groups: dict[str, tuple[str, int]], world: int, expected: dict[str, int | None]) -> None:
    uses = [use(dimension, named(name, size=size)) for name, (dimension, size) in groups.items()]
    degrees = found([RankUses(rank=0, uses=uses)], world=world)
    assert {name: degrees[name] for name in expected} == expected


def test_what_may_be_anything_leaves_it_unknown() -> None:
    """An all-reduce of unknown kind over 8 of 64 ranks may be tp's or dp's; a send/receive pp's, cp's."""
    uses = [use("unknown", CallGroup(name="3", size=8), evidence="none")]
    degrees = find_degrees([RankUses(rank=0, uses=uses)], NO_FACTS, 64)
    assert (of(degrees, "tp").ranks, of(degrees, "dp").ranks) == (None, None)
    assert "8 ranks" in of(degrees, "tp").evidence[0]
    assert "tp or dp" in of(degrees, "tp").evidence[0]
    exchange = [use("unknown", CallGroup(name="3", size=8), evidence="none", operation="send_recv")]
    assert found([RankUses(rank=0, uses=exchange)], world=8)["pp"] is None


def test_what_was_given_agrees_or_is_contradicted() -> None:
    ranks = [RankUses(rank=0, uses=[use("tp", named("TENSOR_MODEL_PARALLEL_GROUP", size=8))])]
    right = of(find_degrees(ranks, given_facts(["tp=8"]), 8), "tp")
    assert (right.ranks, right.strength, right.contradicted_by) == (8, "named", [])
    assert right.evidence[-1] == "--set"
    wrong = of(find_degrees(ranks, given_facts(["tp=4"]), 8), "tp")
    assert (wrong.ranks, len(wrong.contradicted_by)) == (8, 1)


def test_two_groups_of_one_name_contradict_each_other() -> None:
    text = "TENSOR_MODEL_PARALLEL_GROUP"
    uses = [use("tp", CallGroup(name=str(n), description=text, size=n)) for n in (4, 8)]
    assert of(find_degrees([RankUses(rank=0, uses=uses)], NO_FACTS, 8), "tp").contradicted_by


def test_given_facts_are_not_overwritten() -> None:
    facts = given_facts(["pp=4", "gbs=32", "mbs=1", "micro_batches=8"])
    stages = named("PIPELINE_MODEL_PARALLEL_GROUP", size=4)
    ranks = [RankUses(rank=0, uses=[use("pp", stages, operation="send")])]
    new = filled(facts, find_degrees(ranks, facts, 8))
    assert (new.pp, new.micro_batches, new.sources["pp"]) == (4, 8, "--set")
    assert (new.tp, new.cp, new.dp) == (None, None, None), "8 / 4 ranks may be tp's or dp's"


LAYOUTS = [
    layout
    for tp, cp, dp, pp in itertools.product((1, 2, 4), (1, 2), (1, 2, 4), (1, 2, 4))
    if 1 < (layout := Layout(tp=tp, cp=cp, dp=dp, pp=pp)).world_size <= 64
]
OPERATIONS = {
    "dp": "reduce_scatter",
    "tp": "all_reduce",
    "cp": "send_recv",
    "ep": "all_to_all",
    "pp": "send_recv",
}


def ranks_of(layout: Layout, *, listed: bool, captured: Sequence[int] | None = None) -> list[RankUses]:
    """What each rank shows, its groups nameless: by their ranks, or by communicators alone."""
    ranks = []
    for rank in range(layout.world_size) if captured is None else captured:
        uses = []
        for key, group in groups_of(layout, rank).items():
            if key == "other":
                continue
            known = CallGroup(
                communicator=0 if listed else group.communicator,
                name=key if listed else "",
                ranks=group.ranks if listed else (),
                size=len(group.ranks),
            )
            uses.append(use(group.dimension, known, operation=OPERATIONS[group.dimension]))
        ranks.append(RankUses(rank=rank, uses=uses))
    return ranks


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda lay: f"tp{lay.tp}cp{lay.cp}dp{lay.dp}pp{lay.pp}")
@pytest.mark.parametrize("listed", [False, True])
def test_whole_jobs(layout: Layout, *, listed: bool) -> None:
    """Groups by dimension alone, all ranks captured: communicators count the ranks, lists of ranks need the
    job's number."""
    world = layout.world_size if listed else None
    degrees = found(ranks_of(layout, listed=listed), world=world)
    expected = {name: getattr(layout, name) for name in ("world_size", "tp", "cp", "dp", "pp")}
    assert {name: degrees[name] for name in expected} == expected


@given(st.sampled_from(LAYOUTS), st.data())
def test_parts_of_jobs_are_right_or_unknown(layout: Layout, data: st.DataObject) -> None:
    """Any ranks of a job, with or without its number of ranks."""
    world = layout.world_size
    captured = data.draw(st.lists(st.integers(0, world - 1), min_size=1, max_size=4, unique=True))
    listed, known = data.draw(st.booleans()), data.draw(st.sampled_from([None, world]))
    degrees = found(ranks_of(layout, listed=listed, captured=sorted(captured)), world=known)
    for name in ("world_size", "tp", "cp", "dp", "pp"):
        assert degrees[name] in (None, getattr(layout, name)), (name, captured, listed, known)


@given(
    st.lists(
        st.tuples(st.sampled_from(["tp", "dp", "cp", "pp", "ep", "unknown"]), st.integers(1, 9)), max_size=6
    )
)
def test_any_table_ends_and_multiplies(rows: list[tuple[str, int]]) -> None:
    """Whatever sizes contradict what, the search ends, and degrees that nothing contradicts multiply to the
    job's ranks."""
    uses = [use(dimension, CallGroup(name=str(i), size=size)) for i, (dimension, size) in enumerate(rows)]
    degrees = {d.name: d for d in find_degrees([RankUses(rank=0, uses=uses)], NO_FACTS, 8)}
    four = [degrees[name] for name in ("tp", "cp", "dp", "pp")]
    if all(d.ranks and not d.contradicted_by for d in (*four, degrees["world_size"])):
        assert math.prod(d.ranks or 0 for d in four) == 8


def test_megatron_forward_without_groups(shared_traces: Path) -> None:
    """84 all-reduces in Megatron's own functions, on 8 of 8 ranks that leave them together."""
    paths = sorted((shared_traces / "strangers" / "megatron_gpt_forward_tp8_a100").glob("*.gz"))
    captures = measure_all(AnalysisRequest(captures=paths, replay=False)).captures
    job = measure_job(captures)
    assert {
        (row.dimension, row.evidence, row.count) for c in captures for row in c.ranks[0].communication
    } == {("tp", "operator", 81), ("tp", "operator", 3)}
    assert {c.framework for c in captures} == {"megatron"}
    assert {d.name: d.ranks for d in job.degrees} == {
        "world_size": 8, "tp": 8, "cp": 1, "ep": 1, "dp": 1, "pp": 1,
    }  # fmt: skip
    tp = of(job.degrees, "tp")
    assert tp.strength == "counted"
    assert "84 all-reduces a rank in _ReduceFromModelParallelRegion" in tp.evidence[0]
