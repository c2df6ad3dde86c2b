from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfdoc.profiling import vocabulary
from perfdoc.profiling.distributed.collective_name import (
    DIMENSIONS,
    MAX_TEXT,
    OPERATIONS,
    CollectiveName,
    carried,
    format_collective,
    parse_collective,
)
from perfdoc.profiling.marks import (
    GroupMark,
    RankMark,
    format_group_mark,
    format_rank_mark,
    parse_group_mark,
    parse_rank_mark,
)

COUNT = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=MAX_TEXT)
NAMES = st.builds(
    CollectiveName,
    phase=st.sampled_from(vocabulary.COLLECTIVE_PHASES),
    operation=st.sampled_from(OPERATIONS),
    group=TEXT,
    group_name=TEXT,
    bytes=st.none() | COUNT,
    sequence=COUNT,
    sent_bytes=st.none() | COUNT,
    peer=st.none() | COUNT,
    dimension=st.none() | st.sampled_from(DIMENSIONS),
)


def plain(**changes: object) -> CollectiveName:
    facts: dict[str, object] = {
        "phase": vocabulary.COLLECTIVE_ISSUE,
        "operation": "all_reduce",
        "group": "TENSOR_MODEL_PARALLEL_GROUP",
        "group_name": "3",
        "bytes": 4096,
        "sequence": 17,
    }
    return CollectiveName(**{**facts, **changes})  # type: ignore[arg-type]


def test_collective_is_written_as_documented() -> None:
    name = "perfdoc.comm.issue all_reduce group=TENSOR_MODEL_PARALLEL_GROUP pg=3 bytes=4096 seq=17"
    assert format_collective(plain()) == name
    assert parse_collective(name) == plain()
    sent = plain(operation="send", phase=vocabulary.COLLECTIVE_WAIT, peer=5, bytes=None, group="a b=c")
    assert format_collective(sent) == "perfdoc.comm.wait send group=a%20b%3Dc pg=3 bytes=? seq=17 peer=5"
    known = plain(operation="recv", peer=0, dimension="pp", group="default_pg")
    text = "perfdoc.comm.issue recv group=default_pg pg=3 bytes=4096 seq=17 peer=0 dim=pp"
    assert format_collective(known) == text
    assert parse_collective(text) == known


@given(NAMES)
@example(plain(group="%41 pg=1 bytes=0 seq=0"))
def test_collective_round_trips(name: CollectiveName) -> None:
    assert parse_collective(format_collective(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "perfdoc.comm.issue",
        "perfdoc.comm.issue all_reduce group=A pg=1 bytes=1",
        "perfdoc.comm.issue all_reduce group=A pg=1 bytes=01 seq=1",
        "perfdoc.comm.issue all_reduce group=A pg=1 bytes=-1 seq=1",
        "perfdoc.comm.issue all_reduce group=A pg=1 bytes=1 seq=1\n",
        "perfdoc.comm.issue all_reduce group=A pg=1 bytes=1 seq=9223372036854775808",
        "perfdoc.comm.issue all_reduce group=A pg=1 bytes=1 seq=1 dim=pipeline",
        "perfdoc.comm.issue ncclAllReduce group=A pg=1 bytes=1 seq=1",
        "perfdoc.comm.issue all_reduce group=" + "A" * (MAX_TEXT + 1) + " pg=1 bytes=1 seq=1",
        "perfdoc.comm.issue all_reduce group=" + "A" * 100_000 + " pg=1 bytes=1 seq=1",
    ],
)
def test_other_names_are_no_collectives(name: str) -> None:
    assert parse_collective(name) is None


@pytest.mark.parametrize(
    "changes",
    [{"operation": "ncclAllReduce"}, {"phase": "perfdoc.step"}, {"sequence": -1}, {"bytes": 2**63}]
    + [{"group": "x" * (MAX_TEXT + 1)}, {"group": "\udc80"}, {"dimension": "PP"}],
)
def test_what_cannot_be_carried_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - one refusal for each fact
        format_collective(plain(**changes))


@given(st.text(max_size=2 * MAX_TEXT))
def test_carried_texts_are_never_refused(text: str) -> None:
    assert parse_collective(format_collective(plain(group=carried(text)))) == plain(group=carried(text))


RANKS = st.lists(st.integers(0, (1 << 20) - 1), max_size=40)


@given(TEXT, RANKS, st.none() | st.integers(0, 2**64 - 1), TEXT)
@example("TP", [0, 1], None, "1")
@example("DP", list(range(0, 4096, 8)), 2**64 - 1, "")
@example("", [], None, "")
@example("odd", [5, 5, 3, 1, 1], None, "")
def test_group_mark_round_trips(
    description: str, ranks: list[int], communicator: int | None, name: str
) -> None:
    text = format_group_mark(description, ranks, communicator, name=name)
    assert parse_group_mark(text) == GroupMark(
        description=description, ranks=tuple(ranks), communicator=communicator, name=name
    )


@pytest.mark.parametrize(
    "ranks",
    ["0-9999999", "3-1", "0-5/2", "0,1", "0-1/1", "01", "0-2/0", "0-1048576", ",".join(["0-1048575"] * 3)],
)
def test_odd_rank_lists_are_no_group_marks(ranks: str) -> None:
    # "0,1" and "0-1/1" are second spellings of "0-1"; the others are wrong or too many.
    assert parse_group_mark(f"perfdoc.group group=A pg= ranks={ranks}") is None


def test_rank_mark_round_trips() -> None:
    text = format_rank_mark(3, 8, "cpu")
    assert text == "perfdoc.rank 3 world=8 device=cpu"
    assert parse_rank_mark(text) == RankMark(rank=3, world_size=8, device="cpu")
    assert parse_rank_mark("perfdoc.rank 8 world=8 device=cpu") is None
    assert parse_rank_mark("perfdoc.rank 0 world=8 device=tpu") is None
    with pytest.raises(ValueError, match="rank 8 of 8"):
        format_rank_mark(8, 8, "cuda")


def test_places_round_trip() -> None:
    name = vocabulary.format_compute(vocabulary.BACKWARD, layer=3, module="self_attention.core")
    assert name == "perfdoc.backward layer=3 module=self_attention.core"
    assert vocabulary.parse_compute(name) == vocabulary.Place(layer=3, module="self_attention.core")
    assert vocabulary.parse_compute("perfdoc.forward") == vocabulary.Place()
    assert vocabulary.parse_compute("perfdoc.forward layer=03") is None
    with pytest.raises(ValueError, match="layer"):
        vocabulary.format_compute(vocabulary.STEP, layer=1)


def test_names_and_manifest_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['nvtx'] = None\n"
        "import perfdoc.profiling.vocabulary, perfdoc.profiling.distributed.collective_name\n"
        "import perfdoc.profiling.marks, perfdoc.profiling.manifest\n"
        "import perfdoc.profiling.run_directory, perfdoc.profiling.logs\n"
        "import perfdoc.profiling.logs, perfdoc.profiling.nsys.command\n"
        "import perfdoc.profiling.nsys.collect, perfdoc.profiling.session\n"
        "from perfdoc.profiling import ranges\n"
        "print(ranges.enable() == '')"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == "True", shown.stderr
