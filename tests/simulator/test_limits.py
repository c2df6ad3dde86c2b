"""The most that a change can save: bands end where the work that it touches is gone, and so do bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.results.ranks import ExposedComm, Idle, Ledger
from perfdoc.simulator.replay.edits.host import fused_optimizer, without_host_time
from perfdoc.simulator.replay.edits.overlap import overlapped
from perfdoc.simulator.replay.predict import most_ns, predict, without_touched
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from perfdoc.simulator.replay.unedited import replay
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import one_gpu
from tests.rules.laid import MUL
from tests.rules.test_looped_optimizer import ADAM, stepping
from tests.simulator.scaled import scaled_kernels

US = 1_000
MUCH = Ledger(
    compute=50_000 * US,
    exposed_comm=ExposedComm(dp=0, tp=0, cp=0, ep=0, pp=0, other=0, unknown=0),
    exposed_memcpy=0,
    idle=Idle(host=50_000 * US, gc=0, data=0, dependency=0, launch_latency=50_000 * US, unexplained=0),
)
"""Leaves that hold more than any change here could take."""


def test_a_band_leaves_the_time_of_work_that_nothing_touches(tmp_path: Path) -> None:
    """Two steps in 1,896 us: a GEMM of 499 us, and an optimizer loop of 80 kernels. Fused, 772 us are gained
    by replay, give or take a fifth: to 926. The GEMMs take 998 us whatever becomes of the loop: of 1,896 us
    898 can go, 449 a step, and 1 us is noise."""
    rebuilt = rebuild_rank(view_of(stepping(*ADAM), tmp_path))
    gain = predict(rebuilt, replay(rebuilt), [fused_optimizer()])
    assert gain.mid_ms == pytest.approx(0.772 / 2, abs=1e-3)
    assert 1.2 * 0.772 / 2 > 0.46
    assert gain.high_ms == pytest.approx(0.450, abs=1e-3)


def test_a_withheld_prediction_leaves_what_the_change_touches(tmp_path: Path) -> None:
    """GEMMs take 2 x 499 us of the window, and compute 50 ms by the ledger: at most 499 us a step, not 25 ms.
    Nothing is known of leaves: no bound."""
    rebuilt = rebuild_rank(view_of(stepping(*ADAM), tmp_path))
    withheld = replace(replay(rebuilt), predicts=False, withheld="it is off")
    faster = scaled_kernels(KernelClass.GEMM, 0.5)
    gain = predict(rebuilt, withheld, [faster], [MUCH])
    assert (gain.method, gain.high_ms) == ("ceiling", pytest.approx(0.499))
    small = replace(MUCH, compute=600 * US)
    assert predict(rebuilt, withheld, [faster], [small]).high_ms == pytest.approx(0.3)
    assert predict(rebuilt, withheld, [faster]).method == "none"
    # Of the loop, 80 launches 5 us apart: 395 us from the first to the last, and a kernel of 2 us behind it.
    fused = predict(rebuilt, withheld, [fused_optimizer()], [MUCH])
    assert fused.high_ms == pytest.approx(0.397, abs=1e-3)


def two_streams(folder: Path, *, data: bool = False) -> Rebuilt:
    """Kernels of 30 us on one stream and of 40 on the other, launched one after the other, 60 us apart; the
    host loads data for 20 us of them."""
    builder, thread, device = one_gpu()
    if data:
        thread.range("perfdoc.data", 30 * US, 50 * US)
    for i, us in enumerate((30, 40)):
        at = 60 * i * US
        launch = (thread, at, at + US)
        device.kernel(GEMM, at + 2 * US, at + (2 + us) * US, stream=7 + i, launch=launch)
    device.kernel("mul", 110 * US, 111 * US, full_name=MUL, stream=7, launch=(thread, 61 * US, 62 * US))
    return rebuild_rank(view_of(builder, folder))


def test_chains_count_and_not_sums(tmp_path: Path) -> None:
    """Neither of the two waits for the other: at most the longer one's 40 us. Of the host's 59 us between
    launches 20 are data's, and only those are bounded by its removal, with the calls beside them."""
    rebuilt = two_streams(tmp_path, data=True)
    faster = scaled_kernels(KernelClass.GEMM, 0.5).apply(rebuilt)
    assert most_ns(rebuilt, [faster]) == 40 * US
    loaded = without_host_time("data").apply(rebuilt)
    assert most_ns(rebuilt, [loaded]) == pytest.approx(20 * US, abs=2 * US)
    assert most_ns(rebuilt, []) is None
    assert without_touched(rebuilt, []) is None


def in_turn(folder: Path, took_us: int) -> Rebuilt:
    """GEMMs round robin over four streams, all launched at the start, each 120 us after the last one's end: a
    flag that the device polls, of which the capture shows nothing."""
    builder, thread, device = one_gpu()
    at = 200 * US
    for i in range(20):
        launch = (thread, i * 5 * US, i * 5 * US + 4 * US)
        device.kernel(GEMM, at, at + took_us * US, stream=7 + i % 4, launch=launch)
        at += (took_us + 120) * US
    return rebuild_rank(view_of(builder, folder))


def test_a_bound_holds_where_the_capture_lacks_a_dependency(tmp_path: Path) -> None:
    """Twenty GEMMs of 100 us that take 50 save a millisecond, as they do in the job with faster ones. By what
    the capture shows, five of them on each stream, 250 us."""
    (tmp_path / "fast").mkdir()
    rebuilt, fast = in_turn(tmp_path, 100), in_turn(tmp_path / "fast", 50)
    assert rebuilt.span(rebuilt.end_ns) - fast.span(fast.end_ns) == 1_000 * US
    found = replay(rebuilt)
    assert not found.predicts
    gain = predict(rebuilt, found, [scaled_kernels(KernelClass.GEMM, 0.5)], [MUCH])
    assert gain.method == "ceiling"
    assert gain.high_ms is not None
    assert gain.high_ms >= 1.0


def test_what_rewires_has_its_leaf_alone(tmp_path: Path) -> None:
    rebuilt = two_streams(tmp_path)
    edges = rebuilt.graph.edges
    moved = replace(rebuilt, graph=replace(rebuilt.graph, edges=replace(edges, source=edges.source.copy())))
    assert most_ns(rebuilt, [moved]) is None
    with pytest.raises(ValueError, match="no dp communication"):
        overlapped("dp").apply(rebuilt)
