"""Gains: band, noise, caps, and when nothing is predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.idle import IDLE_CAUSES
from perfdoc.results.ranks import ExposedComm, Idle, Ledger
from perfdoc.results.replay import Replay
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.host import without_host_time, without_launches
from perfdoc.simulator.replay.predict import predict
from perfdoc.simulator.replay.rebuilt import Rebuilt
from tests.planted.job import KINDS
from tests.simulator.rebuilt_of import planted
from tests.simulator.scaled import scaled_kernels

SLOW_DATA = replace(KINDS["dp4"], data_ns=2_150_000)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Replay, Rebuilt]:
    """Three steps of which the first begins behind its data: 2 x 2.15 ms in the window."""
    return planted(SLOW_DATA, tmp_path_factory.mktemp("slow"))


def ledger(**idle_ns: int) -> Ledger:
    return Ledger(
        compute=0,
        exposed_comm=ExposedComm(**dict.fromkeys(DIMENSIONS, 0)),
        exposed_memcpy=0,
        idle=Idle(**{cause: idle_ns.get(cause, 0) for cause in IDLE_CAUSES}),
    )


def test_a_gain_is_per_step_with_its_band(slow: tuple[Replay, Rebuilt]) -> None:
    """4.3 ms over 3 steps: 1.4333 ms; the edit's 15 % is 0.215; the replay is exact, so the noise is 1 us."""
    replay, rebuilt = slow
    gain = predict(rebuilt, replay, [without_host_time("data")])
    assert (gain.low_ms, gain.mid_ms, gain.high_ms) == (1.217, 1.433, 1.65)
    assert gain.method == "replay"
    assert gain.assumptions


def test_an_inexact_replay_widens_the_band_and_is_what_figures_are_rounded_to(
    slow: tuple[Replay, Rebuilt],
) -> None:
    """An error of 2 % of a step of some 8 ms is 0.175 ms:
    1.4333 +- (0.215 + 0.175), in tenths of a ms, outwards: 1.043 -> 1.0, 1.823 -> 1.9."""
    replay, rebuilt = slow
    assert replay.measured_ns is not None
    noise = 0.02 * replay.measured_ns / 3e6
    assert 0.1 < noise < 0.2
    gain = predict(rebuilt, replace(replay, error_frac=-0.02), [without_host_time("data")])
    assert (gain.low_ms, gain.mid_ms, gain.high_ms) == (1.0, 1.4, 1.9)


def test_several_edits_are_simulated_together(slow: tuple[Replay, Rebuilt]) -> None:
    replay, rebuilt = slow
    data, launches = without_host_time("data"), without_launches()
    alone = predict(rebuilt, replay, [data]).mid_ms
    both = predict(rebuilt, replay, [data, launches]).mid_ms
    twice = predict(rebuilt, replay, [data, data]).mid_ms
    assert alone is not None
    assert both is not None
    assert both >= alone
    assert twice == alone, "the same change twice is one change"


def test_a_gain_is_not_above_what_the_leaf_holds(slow: tuple[Replay, Rebuilt]) -> None:
    """data 2.1 + host 0.3 ms of the worst rank, over 3 steps: 0.8 ms, of the 1.433 (from 1.217) that the
    replay says: 0.679 to 0.8."""
    replay, rebuilt = slow
    ledgers = [ledger(data=2_100_000, host=300_000, gc=9_000_000), ledger(data=1_000_000)]
    gain = predict(rebuilt, replay, [without_host_time("data")], ledgers)
    assert (gain.low_ms, gain.mid_ms, gain.high_ms) == (0.679, 0.8, 0.8)


def test_graphs_save_no_more_than_what_the_host_holds_up(slow: tuple[Replay, Rebuilt]) -> None:
    """host 0.3 and launches on their way 0.15 ms over 3 steps; other idle time is not the launches'. But a
    host that is ahead of its device loads data while that works: 0.09 ms more."""
    replay, rebuilt = slow
    withheld = replace(replay, predicts=False, withheld="it is off")
    for data, high_ms in ((0, 0.15), (90_000, 0.18)):
        some = [ledger(host=300_000, launch_latency=150_000, unexplained=9_000_000, data=data)]
        assert predict(rebuilt, withheld, [without_launches()], some).high_ms == high_ms


def longer(share: float, *, may_cost: bool = True, variants: Sequence[float] = ()) -> Edit:
    """All computation takes so much longer (below zero: shorter)."""

    def times(factor: float) -> Callable[[Rebuilt], Rebuilt]:
        return lambda rebuilt: scaled_kernels(None, 1 + factor).apply(rebuilt)

    return Edit(
        name="longer",
        apply=times(share),
        uncertainty_frac=0.1,
        leaves=("compute", "idle"),
        assumptions=(),
        variants=tuple(times(v) for v in variants),
        may_cost=may_cost,
    )


def test_what_costs_says_so(slow: tuple[Replay, Rebuilt]) -> None:
    """A tenth more computation costs some of a step, by its middle and both ends; one that cannot cost ends
    at nothing."""
    replay, rebuilt = slow
    gain = predict(rebuilt, replay, [longer(0.1)])
    assert gain.low_ms is not None
    assert gain.mid_ms is not None
    assert gain.high_ms is not None
    assert gain.low_ms < gain.mid_ms < gain.high_ms < 0
    assert gain.low_ms == pytest.approx(1.1 * gain.mid_ms, abs=0.003)
    assert gain.high_ms == pytest.approx(0.9 * gain.mid_ms, abs=0.003)
    without = predict(rebuilt, replay, [longer(0.1, may_cost=False)])
    assert (without.low_ms, without.mid_ms, without.high_ms) == (0.0, 0.0, 0.0)


def test_a_band_spans_what_is_left_open(slow: tuple[Replay, Rebuilt]) -> None:
    """In the middle a tenth less computation; by its variants a third of that, or twice as much. Either may
    be off by a tenth, as the edit says of itself."""
    replay, rebuilt = slow
    alone = {share: predict(rebuilt, replay, [longer(-share)]).mid_ms for share in (0.03, 0.1, 0.2)}
    gain = predict(rebuilt, replay, [longer(-0.1, variants=(-0.03, -0.2))])
    least, most = alone[0.03], alone[0.2]
    assert least is not None
    assert most is not None
    assert gain.mid_ms == alone[0.1]
    assert gain.low_ms == pytest.approx(0.9 * least, abs=0.003)
    assert gain.high_ms == pytest.approx(1.1 * most, abs=0.003)


def test_a_doubtful_change_makes_no_sure_one_doubtful(slow: tuple[Replay, Rebuilt]) -> None:
    """Data is sure to 15 %; of computation, a little of which goes, all is doubtful. Together they are unsure
    by the root of both squares, and gain no less for sure than the data alone, about."""
    replay, rebuilt = slow
    sure, doubtful = without_host_time("data"), replace(longer(-0.01), uncertainty_frac=1.0)
    alone, little = predict(rebuilt, replay, [sure]), predict(rebuilt, replay, [doubtful])
    both = predict(rebuilt, replay, [sure, doubtful])
    for gain in (alone, little, both):
        assert gain.low_ms is not None
        assert gain.mid_ms is not None
        assert gain.high_ms is not None
    own = (both.mid_ms or 0.0) - (alone.mid_ms or 0.0)
    assert 0 < own < 0.2 * (alone.mid_ms or 0.0)
    half = math.hypot(0.15 * (alone.mid_ms or 0.0), own)
    assert both.low_ms == pytest.approx((both.mid_ms or 0.0) - half, abs=0.004)
    assert both.high_ms == pytest.approx((both.mid_ms or 0.0) + half, abs=0.004)


def test_past_the_bar_there_is_a_ceiling_only(slow: tuple[Replay, Rebuilt]) -> None:
    replay, rebuilt = slow
    bad = replace(replay, predicts=False, withheld="it is off")
    gain = predict(rebuilt, bad, [without_host_time("data")], [ledger(data=3_000_000)])
    assert (gain.method, gain.low_ms, gain.mid_ms, gain.high_ms) == ("ceiling", 0.0, None, 1.0)
    assert "it is off" in gain.assumptions[0]
    assert predict(rebuilt, bad, [without_host_time("data")]).method == "none"


def test_an_edit_that_finds_nothing_says_so(slow: tuple[Replay, Rebuilt]) -> None:
    replay, rebuilt = slow
    gain = predict(rebuilt, replay, [without_host_time("gc")])
    assert (gain.method, gain.mid_ms) == ("none", None)
    assert gain.assumptions == ["no range of the capture shows gc"]


def test_hosts_that_others_wait_for_are_gained_one_after_the_other(slow: tuple[Replay, Rebuilt]) -> None:
    """Two ranks are held up by their data for 0.9 ms each, at different times, and wait 2 ms in
    communication, of which no more than the other's 0.9 are for its data: 1.8 ms over 3 steps. A rank that
    waits for nobody gains its own."""
    replay, rebuilt = slow
    withheld = replace(replay, predicts=False, withheld="it is off")

    def most(*waits_ns: int) -> float | None:
        ledgers = []
        for waits in waits_ns:
            own = ledger(data=900_000)
            ledgers.append(replace(own, exposed_comm=replace(own.exposed_comm, tp=waits)))
        return predict(rebuilt, withheld, [without_host_time("data")], ledgers).high_ms

    assert most(2_000_000, 2_000_000) == pytest.approx(0.6)
    assert most(300_000, 0) == pytest.approx(0.4)
    assert most(0, 0) == most(2_000_000) == pytest.approx(0.3)
    # Gaps of a device are no waits for a host: graphs gain those of one rank.
    gaps = [ledger(launch_latency=400_000), ledger(launch_latency=600_000)]
    for i, own in enumerate(gaps):
        gaps[i] = replace(own, exposed_comm=replace(own.exposed_comm, tp=2_000_000))
    assert predict(rebuilt, withheld, [without_launches()], gaps).high_ms == pytest.approx(0.2)
