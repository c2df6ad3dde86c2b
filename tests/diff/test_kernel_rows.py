"""Kernels by name: what came, what went, and whether calls or durations moved."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.compare.diff.two_sides import compare
from perfdoc.compare.side import KernelTotal, Loaded
from perfdoc.results import KernelClass
from tests.diff.sides import rank_of_steps, side


def with_kernels(steps: int, kernels: dict[str, tuple[int, int]], *, complete: bool = True) -> Loaded:
    """One rank whose kernels are (count, total in ns), all of one class."""
    made = side([rank_of_steps(0, [1000] * steps)])
    count, total = (sum(k[i] for k in kernels.values()) for i in (0, 1))
    classes = [KernelClass(name="gemm", count=count, total_ns=total, share_frac=1.0)]
    analysis = replace(made.diagnosis.analyses.kernels, classes=classes, top=[])
    analyses = replace(made.diagnosis.analyses, kernels=analysis)
    return replace(
        made,
        diagnosis=replace(made.diagnosis, analyses=analyses),
        kernels={n: KernelTotal(kernel_class="gemm", count=c, total_ns=t) for n, (c, t) in kernels.items()},
        kernels_complete=complete,
    )


def test_effects_by_hand() -> None:
    # Two steps each. "more": 10 -> 12 calls a step at 10 -> 20 ns each: 100 -> 240 ns a step.
    # By calls (12 - 10) * (10 + 20) / 2 = 30, by time the other 110.
    one = with_kernels(2, {"more": (20, 200), "often": (4, 40), "gone": (2, 60), "same": (2, 2)})
    two = with_kernels(2, {"more": (24, 480), "often": (8, 80), "new": (6, 600), "same": (2, 2)})
    found = {k.name: k for k in compare(one, two).kernels.kernels}
    assert {n: (k.status, k.change_ns, k.count_effect_ns, k.time_effect_ns) for n, k in found.items()} == {
        "new": ("appeared", 300, 300, 0),
        "more": ("slower", 140, 30, 110),
        "gone": ("gone", -30, -30, 0),
        "often": ("more_calls", 20, 20, 0),
    }
    assert (found["new"].calls_before, found["new"].calls_after) == (0, 3)
    (row,) = compare(one, two).kernels.classes
    assert (row.before_ns, row.after_ns, row.change_ns) == (151, 581, 430)


def test_a_list_of_the_longest_alone_says_nothing_of_the_others() -> None:
    one = with_kernels(1, {"a": (1, 10), "b": (1, 5)}, complete=False)
    two = with_kernels(1, {"a": (1, 12), "c": (1, 7)})
    found = {k.name: (k.status, k.change_ns) for k in compare(one, two).kernels.kernels}
    assert found == {"a": ("slower", 2), "c": ("not_listed", None), "b": ("gone", -5)}
