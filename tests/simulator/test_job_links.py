"""Which links a group of ranks has, and what it takes where another layout gives it others; by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.simulator.job.network import Network, crosses_domains, crossing_hops_frac, network_of
from perfdoc.simulator.job.predict import build_model
from perfdoc.simulator.job.scaling import link_of, link_with
from perfdoc.simulator.job.settings import captured_settings
from perfdoc.traces.job_facts import JobFacts
from tests.simulator.hand_model import settings
from tests.simulator.jobs_by_hand import MS, rank_by_hand, traffic_by_hand

WIDE = settings(tp=8, pp=4, dp=2, layers=(2, 2, 2, 2), sequence_parallel=True)
"""64 ranks: tensor groups fill domains of 8, so replicas lie in two."""
DEEP = replace(WIDE, tp=4, pp=8, layers=(1,) * 8)
"""Tensor groups of 4, and both replicas of a rank in one domain."""
INSIDE, ACROSS = 0.01, 0.08
"""ns per byte."""


def network(domain: int | None = 8) -> Network:
    """Gathers over TP of 1 MB each and over DP of 10 MB each; messages of 5 MB."""
    return network_of(
        [
            traffic_by_hand("tp", "all_gather", 10**6, 7e6 * INSIDE),
            traffic_by_hand("dp", "all_gather", 10**7, 1e7 * ACROSS),
            traffic_by_hand("pp", "send_recv", 5 * 10**6, 5e6 * ACROSS),
        ],
        {"tp": 8, "dp": 2},
        settings=WIDE,
        domain=domain,
        message_ns=5e6 * ACROSS,
    )


@pytest.mark.parametrize(
    ("dimension", "changed", "crosses"),
    [
        ("tp", {}, False),
        ("dp", {}, True),
        ("pp", {}, True),
        ("dp", {"tp": 4}, False),
        ("cp", {"tp": 4, "cp": 2}, False),
        ("dp", {"tp": 4, "cp": 2}, True),
        ("ep", {"tp": 2, "dp": 8, "ep": 4}, False),
        ("ep", {"tp": 2, "dp": 8, "ep": 8}, True),
        ("tp", {"tp": 3}, True),  # three do not divide eight: some group lies in two
        ("tp", {"tp": 1}, False),
        ("pp", {"tp": 2, "dp": 1}, False),  # eight ranks in all
        ("tp", {"tp": 3, "dp": 1, "pp": 2}, False),  # six
    ],
)
def test_where_ranks_lie(dimension: str, changed: dict[str, int], crosses: bool) -> None:
    assert crosses_domains(dimension, replace(WIDE, **changed), 8) is crosses  # type: ignore[arg-type]
    assert crosses_domains(dimension, replace(WIDE, **changed), None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "share"),
    [
        ({}, 1.0),
        ({"tp": 4, "dp": 1}, 1 / 3),  # four stages of four ranks
        ({"tp": 4, "dp": 1, "vpp": 2}, 3 / 7),
        ({"tp": 2, "dp": 1}, 0.0),
        (
            {"tp": 3, "dp": 1},
            2 / 3,
        ),  # ranks 0 to 2 reach 3 to 5; 5 has its peer in 8, and 6 and 7 in 9 and 10
        ({"pp": 1}, None),
    ],
)
def test_messages_between_domains(changed: dict[str, int], share: float | None) -> None:
    assert crossing_hops_frac(replace(WIDE, **changed), 8) == share  # type: ignore[arg-type]
    assert crossing_hops_frac(WIDE, None) is None


def test_a_message_is_the_mean_of_its_links() -> None:
    """From 5 MB across domains, 400 us: a third across and the rest at an eighth of it is 5 / 12. Of half the
    size half."""
    new = replace(WIDE, tp=4, dp=1)
    assert network().message_ns(400e3, WIDE, new, 1.0) == pytest.approx(400e3 * 5 / 12)
    assert network().message_ns(400e3, WIDE, new, 0.5) == pytest.approx(400e3 * 5 / 24)
    assert network(None).message_ns(400e3, WIDE, new, 1.0) == 400e3


def test_a_byte_takes_what_it_takes_on_the_new_links() -> None:
    one = network()
    assert one.by_link == {False: pytest.approx(INSIDE), True: pytest.approx(ACROSS)}
    assert one.slower("dp", WIDE, DEEP) == pytest.approx(INSIDE / ACROSS)
    assert one.slower("tp", WIDE, replace(WIDE, tp=16, dp=1)) == pytest.approx(ACROSS / INSIDE)
    assert one.slower("tp", WIDE, DEEP) == 1
    assert network(None).slower("dp", WIDE, DEEP) == 1


def test_nothing_inside_a_domain_tells_what_leaving_it_takes() -> None:
    small = settings(tp=2, pp=1, dp=4, layers=(4,))
    traffic = [traffic_by_hand("tp", "all_gather", 10**6, 1e6 * INSIDE)]
    one = network_of(traffic, {"tp": 2}, settings=small, domain=8)
    assert one.by_link == {False: pytest.approx(INSIDE)}
    with pytest.raises(ValueError, match="between NVLink domains"):
        one.slower("tp", small, replace(small, tp=16))
    with pytest.raises(ValueError, match="between NVLink domains"):
        one.takes(1e6, crosses=True)
    assert one.takes(1e6, crosses=False) == pytest.approx(1e6 * INSIDE)
    two = replace(small, pp=2, dp=2)
    with pytest.raises(ValueError, match="between NVLink domains"):
        one.message_ns(1e6, two, replace(two, dp=4), 1.0)
    assert one.message_ns(1e6, two, replace(two, vpp=2), 1.0) == 1e6


def test_links_inside_a_domain_that_were_not_seen_are_those_between() -> None:
    wide = replace(WIDE, tp=1, dp=16)
    traffic = [traffic_by_hand("dp", "all_gather", 10**6, 15e6 * ACROSS)]
    one = network_of(traffic, {"dp": 16}, settings=wide, domain=8)
    assert one.slower("dp", wide, replace(wide, dp=8)) == 1


def test_gathers_of_replicas_in_one_domain() -> None:
    """Half the tensor ranks on twice the stages: as many parameters, replicas and buckets, quicker links."""
    link = link_of([traffic_by_hand("dp", "all_gather", 10**7, 1e7 * ACROSS, count=4)])
    new = link_with(link, WIDE, DEEP, None, network())
    assert link is not None
    assert new is not None
    assert new.gather_ns == pytest.approx(link.gather_ns * INSIDE / ACROSS)
    assert new.gathers == link.gathers
    deeper = link_with(link, WIDE, replace(DEEP, tp=8, dp=1), None, network())
    assert deeper is not None
    assert deeper.gather_ns == 0


def test_messages_are_a_part_of_the_activations_with_sequence_parallelism() -> None:
    """At TP 1 instead of 2 they are twice as large, and take twice as much of the step."""
    message = (
        traffic_by_hand("pp", "send_recv", 10**6, 1 * MS),
        traffic_by_hand("tp", "all_gather", 10**6, 0.1 * MS),
    )
    ranks = [rank_by_hand(rank=r, world=8, message=1 * MS, traffic=message) for r in (0, 4)]
    facts = JobFacts(tp=2, cp=1, pp=2, dp=2, vpp=1)
    for said, times in ((None, 2), (True, 2), (False, 1)):
        base = captured_settings(ranks, replace(facts, sequence_parallel=said), None)
        assert base.sequence_parallel is (said is not False)
        model = build_model(ranks, base, None)
        new = replace(base, tp=1, dp=4)
        quick = replace(model, message_ns=0.0)
        longer = model.window(base).length - quick.window(base).length
        assert longer > 0
        assert model.window(new).length - quick.window(new).length == pytest.approx(times * longer)


def test_the_rate_of_replicas_in_one_domain_bounds_no_message_between_domains() -> None:
    """Weights are gathered at 0.01 ns a byte inside a domain; messages of 1 MB take 1 ms across."""
    traffic = (
        traffic_by_hand("pp", "send_recv", 10**6, 1 * MS),
        traffic_by_hand("dp", "all_gather", 10**6, 10**4),
    )
    ranks = [rank_by_hand(rank=r, world=16, message=1 * MS, traffic=traffic) for r in (0, 8)]
    base = captured_settings(ranks, JobFacts(tp=4, cp=1, pp=2, dp=2, vpp=1, world_size=16), None)
    assert build_model(ranks, base, None, domain=8).message_ns == 1 * MS
    assert build_model(ranks, base, None).message_ns == 10**4
    assert build_model(ranks, base, None, domain=4).message_ns == 10**4
