"""What a late rank's kernels show: more of them, all longer, or some."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernels.parts import NamedTime
from perfdoc.results.replay import Gain
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.late_work import as_spread, computing_part, longer_times, work_words
from tests.reports.build import communication
from tests.rules.cases import case_of, step_with_gap


def kernels(**of: tuple[int, int]) -> list[NamedTime]:
    """By name (count, length of each)."""
    return [
        NamedTime(
            name=name, short_name=name, kernel_class=KernelClass.GEMM, count=count, total_ns=count * length
        )
        for name, (count, length) in of.items()
    ]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return case_of(tmp_path_factory.mktemp("x"), *(step_with_gap(10) for _ in range(3)))


def running(case: Case, own: list[NamedTime]) -> Case:
    """The first rank runs these; the others 100 GEMMs of 50 and 100 norms of 10."""
    usual = kernels(gemm=(100, 50), norm=(100, 10))
    captures = [
        replace(c, ranks=[replace(r, kernel_times=own if i == 0 else usual) for r in c.ranks])
        for i, c in enumerate(case.captures)
    ]
    return replace(case, captures=captures)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (kernels(gemm=(100, 60), norm=(100, 12)), "All its kernels take 1.2 times"),
        (kernels(gemm=(110, 60), norm=(110, 12)), "All its kernels take 1.2 times"),
        (kernels(gemm=(120, 50), norm=(120, 10)), "20.0 % more kernels"),
        (kernels(gemm=(100, 62), norm=(100, 10)), "Only some"),
        (kernels(gemm=(100, 50), norm=(100, 10)), ""),
        (kernels(other=(100, 90)), ""),  # another role
        ([], ""),
    ],
)
def test_what_its_kernels_show(three: Case, own: list[NamedTime], words: str) -> None:
    found = work_words(running(three, own), three.job.labels[0])
    assert found.startswith(words) or words in found
    assert computing_part(found) == ("GPU" if "All" in words or not words else "work")
    assert bool(found) == bool(words)
    if "1.2 times" in words:
        assert longer_times(running(three, own), three.job.labels[0]) == pytest.approx(1.2)


@pytest.mark.parametrize(("blocks", "part"), [(1200, "work"), (1090, "GPU"), (-1, "GPU")])
def test_a_larger_batch_is_told_from_a_slow_gpu(three: Case, blocks: int, part: str) -> None:
    """All kernels take 1.2 times as long, in so many thread blocks a step where the others launch 1,000. Of a
    rank that computes 600 and two that compute 500 the mean is 533: shared among all, 67 of the 100 go."""
    case = running(three, kernels(gemm=(100, 60), norm=(100, 12)))
    captures = []
    for i, c in enumerate(case.captures):
        steps = [
            replace(r.step_ledgers, blocks=np.full(len(r.step_ledgers.names), 1000 if i else blocks))
            for r in c.ranks
        ]
        ms = 10**6 * c.ranks[0].window.steps
        ranks = [
            replace(r, step_ledgers=of, ledger=replace(r.ledger, compute=(500 if i else 600) * ms))
            for r, of in zip(c.ranks, steps, strict=True)
        ]
        captures.append(replace(c, ranks=ranks))
    case = replace(case, captures=captures)
    words = work_words(case, case.job.labels[0])
    assert computing_part(words) == part
    gain = Gain(low_ms=90, mid_ms=100, high_ms=105, method="replay", assumptions=[])
    spread = as_spread(case, case.job.labels[0], words, gain)
    assert spread is not None
    most = 66.67 if part == "work" else 100
    assert (spread.mid_ms, spread.high_ms) == (pytest.approx(most, rel=0.01), 105)
    assert (spread.low_ms or 0) <= (spread.mid_ms or 0)


@pytest.mark.parametrize(("attention", "whose"), [(10, "experts"), (11, "sequences")])
def test_experts_with_more_tokens_are_told_from_longer_sequences(
    three: Case, attention: int, whose: str
) -> None:
    """Products take 70 ns in place of 50, 2,000 in all; of longer sequences attention, 300 of 10, takes 300
    longer too, which is 13 % of 2,300."""

    def like(rows: list[NamedTime]) -> list[NamedTime]:
        more = {"count": 300, "kernel_class": KernelClass.ATTENTION}
        return [replace(k, total_ns=3 * k.total_ns, **more) if k.name == "norm" else k for k in rows]

    case = running(three, kernels(gemm=(100, 70), norm=(100, attention)))
    row = communication("ep", 100)
    captures = [
        replace(
            c, ranks=[replace(r, communication=[row], kernel_times=like(r.kernel_times)) for r in c.ranks]
        )
        for c in case.captures
    ]
    words = work_words(replace(case, captures=captures), case.job.labels[0])
    assert (whose in words, computing_part(words)) == (True, "work")
    assert "experts" not in work_words(case, case.job.labels[0])  # no tokens are exchanged


def test_a_single_rank_has_no_peers(tmp_path: Path) -> None:
    case = case_of(tmp_path, step_with_gap(10))
    assert work_words(case, case.job.labels[0]) == ""
