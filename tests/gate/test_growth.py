"""Which part grew."""

from __future__ import annotations

from perfdoc.compare.figures import RunFigures
from perfdoc.compare.gate.parts import growth


def run(**parts: int) -> RunFigures:
    return RunFigures(
        source="r", digest="0" * 16, median_step_ns=1, mad_step_ns=0, steps=9, warmup_steps=0, parts_ns=parts
    )


def test_the_part_that_grew_is_first_and_noise_is_not_named() -> None:
    # Steps of 1000: 2 is the least that is named. idle.gc scatters by 20 itself, half of it is 10.
    before = [run(compute=800, gc=100, data=100), run(compute=800, gc=120, data=80)]
    after = [run(compute=850, gc=118, data=40, new=5)]
    found = growth(before, after)
    # data: 90 -> 40, beyond its 10; gc: 110 -> 118 is within its 10.
    assert [(p.part, p.before_ns, p.after_ns) for p in found] == [
        ("compute", 800, 850),
        ("new", 0, 5),
        ("data", 90, 40),
    ]


def test_without_a_ledger_nothing_is_said() -> None:
    assert growth([run()], [run(compute=5)]) == []
    assert growth([run(compute=5)], [run()]) == []
