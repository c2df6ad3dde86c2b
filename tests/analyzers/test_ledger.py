from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.base.intervals import EMPTY, union
from perfdoc.analyzers.device.activity import DIMENSIONS, Activity, Communication
from perfdoc.analyzers.device.idle import IdleInputs, idle_inputs
from perfdoc.analyzers.device.range_names import find_known_ranges
from perfdoc.analyzers.ledger.steps import build_ledger
from tests.analyzers.brute import covered, exposed_by_dimension
from tests.analyzers.tiny import ALL_GATHER, ALL_REDUCE, GEMM, activity_of, one_device, trace_of
from tests.captures.timeline import TimelineBuilder

END = 60
COMPUTE, COMM, COPY = range(3)
activity_rows = st.lists(
    st.tuples(
        st.sampled_from((COMPUTE, COMM, COPY)),
        st.integers(0, END),
        st.integers(0, END),
        st.integers(0, len(DIMENSIONS) - 1),
        st.integers(-1, END),
    ).map(lambda r: (r[0], min(r[1:3]), max(r[1:3]), r[3], r[4])),
    min_size=1,
    max_size=14,
)
window = st.tuples(st.integers(0, END + 5), st.integers(0, END + 5)).map(lambda p: (min(p), max(p)))


def made(rows: list[tuple[int, int, int, int, int]]) -> tuple[Activity, IdleInputs]:
    """An Activity straight from arrays: kinds, dimensions, streams and launches are all random."""
    rows = sorted(rows, key=lambda r: r[1])
    start = np.array([r[1] for r in rows], np.int64)
    end = np.array([r[2] for r in rows], np.int64)
    kind = np.array([r[0] for r in rows])
    comm = kind == COMM
    sets = [union(start[kind == k], end[kind == k]) for k in (COMPUTE, COMM, COPY)]
    launch = np.array([r[4] for r in rows], np.int64)
    activity = Activity(
        device=0,
        kernel_rows=np.empty(0, np.int64),
        kernel_is_comm=np.empty(0, bool),
        kernel_compute=sets[0],
        kernel_comm=sets[1],
        compute=sets[0],
        comm=sets[1],
        copies=sets[2],
        communication=Communication(
            start_ns=start[comm],
            end_ns=end[comm],
            dimension=np.array([r[3] for r in rows], np.int64)[comm],
            kind=np.zeros(int(comm.sum()), np.int64),
            kinds=[None],
            kernel=(none := np.full(int(comm.sum()), -1)),
            stream=none,
            launch_start_ns=none,
            launch_thread=none,
            evidence=none,
            payload=none,
            communicator=np.zeros(int(comm.sum()), np.uint64),
            bytes=none,
            bytes_of_one_operation=none >= 0,
            blocked_since_ns=None,
        ),
        comm_rows=np.flatnonzero(comm),
        busy=sets[0] | sets[1] | sets[2],
        start_ns=start,
        end_ns=end,
        launch_start_ns=launch,
        launch_end_ns=np.where(launch >= 0, launch + 3, -1),
        launch_thread=np.zeros(len(rows), np.int64),
        stream=np.array([r[3] for r in rows], np.int64),
        kernel=np.full(len(rows), -1),
        is_compute=kind == COMPUTE,
    )
    idle = IdleInputs(gc=EMPTY, gc_or_data=EMPTY)
    return activity, idle


@given(activity_rows, window)
def test_every_leaf_equals_a_count_of_nanoseconds(
    rows: list[tuple[int, int, int, int, int]], bounds: tuple[int, int]
) -> None:
    activity, idle = made(rows)
    a, b = bounds
    ledger = build_ledger(activity, a, b, idle)

    by_kind = [
        [(s, e) for k, s, e, _, _ in sorted(rows, key=lambda r: r[1]) if k == kind] for kind in range(3)
    ]
    compute, comm, copies = (covered(x, a, b) for x in by_kind)
    assert ledger.compute == len(compute)
    assert ledger.exposed_memcpy == len(copies - compute - comm)
    assert ledger.idle.total == (b - a) - len(compute | comm | copies)
    dimensions = [(s, e, d) for k, s, e, d, _ in sorted(rows, key=lambda r: r[1]) if k == COMM]
    expected = exposed_by_dimension(dimensions, by_kind[COMPUTE], a, b)
    assert {k: v for k, v in ledger.exposed_comm.by_name.items() if v} == {
        DIMENSIONS[d]: v for d, v in expected.items()
    }


@given(activity_rows, st.lists(st.integers(0, END + 9), min_size=14, max_size=14), window)
def test_a_nanosecond_goes_first_to_what_compute_waited_for(
    rows: list[tuple[int, int, int, int, int]], since: list[int], bounds: tuple[int, int]
) -> None:
    """From when each is waited for is random; what lies behind the end of a row means that nothing waited."""
    activity, idle = made(rows)
    comm = activity.communication
    waits = np.array(since[: len(comm.start_ns)], np.int64)
    ledger = build_ledger(
        replace(activity, communication=replace(comm, blocked_since_ns=waits)), *bounds, idle
    )
    compute = [(s, e) for k, s, e, _, _ in rows if k == COMPUTE]
    columns = zip(
        comm.start_ns.tolist(), waits.tolist(), comm.end_ns.tolist(), comm.dimension.tolist(), strict=True
    )
    spans = [(s, max(s, w), e, d) for s, w, e, d in columns]
    waited = [(w, e, d) for _, w, e, d in spans if w < e]
    expected = Counter(exposed_by_dimension(waited, compute, *bounds))
    taken = compute + [(w, e) for w, e, _ in waited]
    expected += Counter(exposed_by_dimension([(s, e, d) for s, _, e, d in spans], taken, *bounds))
    assert {k: v for k, v in ledger.exposed_comm.by_name.items() if v} == {
        DIMENSIONS[d]: v for d, v in expected.items()
    }


def test_of_two_exposed_collectives_the_awaited_one_pays(tmp_path: Path) -> None:
    """dp [0,100) and tp [0,60) are exposed together from 0 to 60. Nothing known: all 100 are dp's, which ends
    last. If compute provably waited for tp from 20 on, [20,60) are tp's: dp has 20 + 40 = 60, tp 40."""
    trace = one_device(tmp_path, [(ALL_REDUCE, 0, 100, 20), (ALL_GATHER, 0, 60, 21), (GEMM, 100, 110, 7)])
    activity = activity_of(trace)
    comm = replace(
        activity.communication, dimension=np.array([DIMENSIONS.index("dp"), DIMENSIONS.index("tp")])
    )
    idle = idle_inputs(trace, activity, find_known_ranges(trace))
    for since, expected in ((None, (100, 0)), (np.array([2**62, 20]), (60, 40))):
        waiting = replace(activity, communication=replace(comm, blocked_since_ns=since))
        exposed = build_ledger(waiting, 0, 110, idle).exposed_comm.by_name
        assert (exposed["dp"], exposed["tp"]) == expected


@given(activity_rows, st.lists(st.integers(0, END), min_size=2, max_size=5))
def test_ledgers_of_adjacent_windows_add_up(
    rows: list[tuple[int, int, int, int, int]], cuts: list[int]
) -> None:
    """Each leaf of a window is the sum over its parts: no nanosecond depends on where the cut is."""
    activity, idle = made(rows)
    cuts = sorted(cuts)
    whole = build_ledger(activity, cuts[0], cuts[-1], idle)
    parts = [build_ledger(activity, a, b, idle) for a, b in pairwise(cuts)]
    assert whole.compute == sum(p.compute for p in parts)
    assert whole.exposed_memcpy == sum(p.exposed_memcpy for p in parts)
    for d, value in whole.exposed_comm.by_name.items():
        assert value == sum(p.exposed_comm.by_name[d] for p in parts)
    first, last = int(activity.busy.start_ns[0]) if len(activity.busy) else 0, int(activity.end_ns.max())
    if first <= cuts[0] and cuts[-1] <= last:  # outside of the capture nothing bounds a gap
        for cause, value in whole.idle.by_name.items():
            assert value == sum(p.idle.by_name[cause] for p in parts), cause


def test_communication_under_two_concurrent_computes_is_hidden_once(tmp_path: Path) -> None:
    # all-reduce [0,100) under gemms [0,60) and [20,80) on two streams: hidden 80, exposed 20.
    # Summing the overlap with each gemm would give 60 + 60 = 120 hidden and -20 exposed.
    trace = one_device(tmp_path, [(ALL_REDUCE, 0, 100, 20), (GEMM, 0, 60, 7), (GEMM, 20, 80, 8)])
    activity = activity_of(trace)
    ledger = build_ledger(activity, 0, 100, idle_inputs(trace, activity, find_known_ranges(trace)))
    assert (ledger.compute, ledger.exposed_comm.unknown) == (80, 20)
    assert ledger.idle.total == 0


def test_communication_that_is_not_called_nccl(tmp_path: Path) -> None:
    # Four transports, 10 ns each, none of them hidden; the gemm takes another 10. Two exist for experts
    # alone, one for tensor parallelism.
    names = [
        "void deep_ep::intranode::dispatch<8, 768>(int4*)",
        "void hybrid_ep::dispatch_kernel<int>(int)",
        "kuserbuffers_pushsend(int)",
        "void vllm::cross_device_reduce_1stage<half, 8>(int)",
    ]
    builder = TimelineBuilder()
    device = builder.process().device()
    for i, name in enumerate(names):
        device.kernel(name.split("(")[0].split("::")[-1].split("<")[0], 10 * i, 10 * i + 10, full_name=name)
    device.kernel(GEMM, 40, 50)
    trace = trace_of(builder, tmp_path)
    activity = activity_of(trace)
    ledger = build_ledger(activity, 0, 50, idle_inputs(trace, activity, find_known_ranges(trace)))
    exposed = ledger.exposed_comm.by_name
    assert (exposed["ep"], exposed["tp"], exposed["unknown"]) == (20, 10, 10)
    assert ledger.compute == 10


def test_a_peer_copy_is_communication_and_another_copy_is_not(tmp_path: Path) -> None:
    # peer copy [0,30) half under the gemm [15,40): exposed 15. Host copy [50,70): exposed copy 20.
    builder = TimelineBuilder()
    device = builder.process().device()
    device.copy("peer_to_peer", 4096, 0, 30, stream=9)
    device.kernel(GEMM, 15, 40)
    device.copy("host_to_device", 4096, 50, 70)
    trace = trace_of(builder, tmp_path)
    activity = activity_of(trace)
    ledger = build_ledger(activity, 0, 70, idle_inputs(trace, activity, find_known_ranges(trace)))
    assert (ledger.compute, ledger.exposed_comm.unknown, ledger.exposed_memcpy) == (25, 15, 20)
    assert ledger.idle.total == 10


def test_graph_launches_count_as_work(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    device = builder.process().device()
    device.graph_launch(3, 0, 80)
    device.kernel(GEMM, 90, 100)
    trace = trace_of(builder, tmp_path)
    activity = activity_of(trace)
    ledger = build_ledger(activity, 0, 100, idle_inputs(trace, activity, find_known_ranges(trace)))
    assert ledger.compute == 90
    assert ledger.idle.total == 10


def test_the_dimension_that_ends_last_owns_the_nanosecond(tmp_path: Path) -> None:
    # dp [0,50), tp [10,30), pp [40,60): dp to 50 (it ends after tp), then pp. tp never owns any.
    trace = one_device(
        tmp_path,
        [(ALL_REDUCE, 0, 50, 20), (ALL_GATHER, 10, 30, 21), (ALL_REDUCE, 40, 60, 22), (GEMM, 60, 61, 7)],
    )
    activity = activity_of(trace)
    named = replace(
        activity,
        communication=replace(
            activity.communication, dimension=np.array([DIMENSIONS.index(d) for d in ("dp", "tp", "pp")])
        ),
    )
    ledger = build_ledger(named, 0, 61, idle_inputs(trace, activity, find_known_ranges(trace)))
    # pp ends last of all that is active from 40 on.
    assert {k: v for k, v in ledger.exposed_comm.by_name.items() if v} == {"dp": 40, "pp": 20}
