"""Kernels of unknown class that look like communication: planted streams, each mark taken away in turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.kernels.suspects import suspected_communication
from perfdoc.analyzers.measure import measure_capture
from perfdoc.results.kernels import SuspectedCommunication
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import GEMM
from tests.captures.device import DeviceBuilder
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder

US = 1_000
XFER = "void zq::xfer<8>(int4*)"
CAST = "void per_token_cast_to_fp8<bf16>(x)"


def exchange(
    device: DeviceBuilder,
    *,
    name: str = XFER,
    durations_us: tuple[int, ...] = (10, 20, 30, 40, 50, 60),
    blocks: Callable[[int], int] = lambda i: 20,
    stream: int = 27,
) -> None:
    """Kernels that begin every 100 us."""
    for i, us in enumerate(durations_us):
        begin = 100 * i * US
        device.kernel(name, begin, begin + us * US, stream=stream, grid=(blocks(i), 1, 1))


def beside_compute(lay: Callable[[DeviceBuilder], None]) -> TimelineBuilder:
    """A window of 1 ms: GEMMs in [0, 350) and [900, 1000) us, and what `lay` adds."""
    builder = TimelineBuilder()
    device = builder.process().device(sm_count=132)
    device.kernel(GEMM, 0, 350 * US)
    device.kernel(GEMM, 900 * US, 1000 * US)
    lay(device)
    return builder


def suspected(folder: Path, lay: Callable[[DeviceBuilder], None]) -> SuspectedCommunication:
    return suspected_communication(view_of(beside_compute(lay), folder))


def test_what_varies_on_few_blocks_of_its_own_stream_is_suspected(tmp_path: Path) -> None:
    found = suspected(tmp_path, exchange)
    (kernel,) = found.kernels
    assert (kernel.short_name, kernel.stream, kernel.count, kernel.blocks) == ("zq::xfer", 27, 6, 20)
    # 10 + 20 + ... + 60; deciles of six values lie half-way: 15 and 55.
    assert kernel.total_ns == found.total_ns == 210 * US
    assert kernel.spread == pytest.approx(55 / 15)
    # The first four run beside the GEMM; [400, 450) and [500, 560) beside nothing.
    assert found.alone_ns == 110 * US


def test_its_companions_on_the_stream_are_suspected_with_it(tmp_path: Path) -> None:
    def lay(device: DeviceBuilder) -> None:
        exchange(device)
        device.kernel("void zq::steady(int4*)", 600 * US, 640 * US, stream=27, grid=(20, 1, 1))

    assert [k.short_name for k in suspected(tmp_path, lay).kernels] == ["zq::xfer", "zq::steady"]


def test_a_word_for_moving_stands_in_for_the_spread(tmp_path: Path) -> None:
    found = suspected(tmp_path, lambda d: exchange(d, name="dispatch", durations_us=(20, 20)))
    assert [(k.short_name, k.spread) for k in found.kernels] == [("dispatch", None)]


@pytest.mark.parametrize(
    "lay",
    [
        pytest.param(lambda d: exchange(d, durations_us=(20,) * 6), id="as long as its grid asks"),
        pytest.param(lambda d: exchange(d, blocks=lambda i: 2 + i), id="the grid explains the durations"),
        pytest.param(lambda d: exchange(d, blocks=lambda i: 132), id="fills the device"),
        pytest.param(lambda d: exchange(d, stream=7), id="the stream of compute"),
        pytest.param(lambda d: exchange(d, durations_us=(10, 60)), id="too few launches to tell"),
        pytest.param(lambda d: exchange(d, name=GEMM), id="a known class"),
        pytest.param(
            lambda d: (exchange(d), d.kernel(CAST, 650 * US, 690 * US, stream=27)), id="known compute beside"
        ),
    ],
)
def test_without_one_of_the_marks_nothing_is(tmp_path: Path, lay: Callable[[DeviceBuilder], None]) -> None:
    found = suspected(tmp_path, lay)
    assert (found.kernels, found.total_ns, found.alone_ns) == ([], 0, 0)


@pytest.mark.parametrize(
    ("durations_us", "suspected_too"),
    [
        (tuple(range(15, 165, 15)), True),  # deciles 28.5 and 136.5 us: 4.8-fold, mean 82.5 us
        (tuple(range(6, 66, 6)), False),  # as far apart, mean 33 us
        (tuple(range(60, 110, 5)), False),  # 1.6-fold
        (tuple(range(15, 150, 15)), False),  # nine launches
    ],
)
def test_on_a_stream_that_computes_more_is_asked(
    tmp_path: Path, durations_us: tuple[int, ...], suspected_too: bool
) -> None:
    def lay(device: DeviceBuilder) -> None:
        at = 1000
        for us in durations_us:
            device.kernel(XFER, at * US, (at + us) * US, stream=7, grid=(20, 1, 1))
            device.kernel(GEMM, (at + us) * US, (at + us + 9) * US, stream=7)
            at += 200
        device.kernel("void zq::dispatch(int*)", at * US, (at + 60) * US, stream=7, grid=(20, 1, 1))

    found = suspected(tmp_path, lay)
    assert [(k.short_name, k.own_stream) for k in found.kernels] == [("zq::xfer", False)] * suspected_too
    assert found.alone_ns == found.total_ns == sum(durations_us) * US * suspected_too


def test_casts_before_a_dispatch_share_its_stream(tmp_path: Path) -> None:
    def lay(device: DeviceBuilder) -> None:
        exchange(device)
        device.kernel(CAST, 650 * US, 670 * US, stream=27)  # 20 of 230 us

    assert [k.short_name for k in suspected(tmp_path, lay).kernels] == ["zq::xfer"]


def test_where_nothing_known_computes_nothing_is_told_apart(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    exchange(builder.process().device())
    assert suspected_communication(view_of(builder, tmp_path)).kernels == []


@pytest.mark.parametrize(
    ("pattern", "compute_us", "exposed_us", "code"),
    [
        (None, 560, 0, None),
        ("xfer", 450, 110, "comm-kernel-given"),
        (r"^void zq::", 450, 110, "comm-kernel-given"),
        ("no_such_kernel", 560, 0, "comm-kernel-matches-none"),
    ],
)
def test_the_users_word_settles_it(
    tmp_path: Path, pattern: str | None, compute_us: int, exposed_us: int, code: str | None
) -> None:
    # Compute without the option: 350 + 100 us of GEMMs and the 110 us beside nothing.
    path = write_nsys_sqlite(beside_compute(exchange).build(), tmp_path / "rank0.sqlite", force=True)
    named = None if pattern is None else re.compile(pattern)
    found = measure_capture(path, WindowRequest(), comm_kernel=named)
    (rank,) = found.ranks
    assert rank.ledger.compute == compute_us * US
    assert rank.ledger.exposed_comm.total == exposed_us * US
    assert [n.code for n in found.notes if n.code.startswith("comm-kernel")] == ([code] if code else [])
    assert bool(rank.suspected.kernels) == (exposed_us == 0)
    if exposed_us:
        (row,) = rank.communication
        assert (row.transport, row.collective, row.count) == ("given", "", 6)


@pytest.mark.parametrize(
    ("name", "transport", "collective"),
    [
        ("void zq::tokens_dispatch_v2(int*)", "given", "dispatch"),
        ("zq_AllGatherRing", "custom", "all_gather"),  # known already: its kind stays
        ("zq_notify_peers", "given", "sync"),
        ("zq_moves", "given", ""),
    ],
)
def test_a_given_kernel_keeps_what_its_name_tells(
    tmp_path: Path, name: str, transport: str, collective: str
) -> None:
    builder = beside_compute(lambda d: exchange(d, name=name))
    path = write_nsys_sqlite(builder.build(), tmp_path / "rank0.sqlite", force=True)
    (rank,) = measure_capture(path, WindowRequest(), comm_kernel=re.compile("zq")).ranks
    (row,) = rank.communication
    assert (row.transport, row.collective) == (transport, collective)
