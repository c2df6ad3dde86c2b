"""Roles of few ranks, windows of other kinds, stages that groups refute: nobody is lost, nobody accused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfdoc.analyzers.roles.measure import find_deviations, mads
from perfdoc.reports.html import render_html
from perfdoc.reports.llm import render_llm
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.screen import render_screen
from perfdoc.reports.sections.roles import outlier_sentence, role_grid, roles_section, roles_sentences
from perfdoc.reports.summary import drawn_groups
from perfdoc.reports.text import render_text
from perfdoc.results import Diagnosis, Job, Rank
from perfdoc.results.roles import STEP, length_ns
from tests.reports import build
from tests.reports.build_roles import roles_of as known
from tests.reports.build_roles import staged, with_roles
from tests.reports.fill import filled, missing

COMPUTE = "compute"


def without_stages(ranks: list[Rank]) -> Diagnosis:
    made = build.diagnosis(ranks)
    pipeline = missing(type(made.analyses.pipeline), "no stages")
    return with_roles(replace(made, job=None, analyses=replace(made.analyses, pipeline=pipeline)))


def by_number(count: int, pp: int, late: int, by: int = 80_000) -> Diagnosis:
    """TP 2 or 1, `pp` stages by number, DP for the rest; the first stage computes 400 us of 1 ms, the last
    480, others 390, each 0 to 0.4 us more; rank `late` computes 80 us more."""
    ranks = []
    for i in range(count):
        stage = i * pp // count
        own = {0: 400_000, pp - 1: 480_000}.get(stage, 390_000) + 100 * (i % 5) + (by if i == late else 0)
        ranks.append(build.rank(i, build.ledger(compute=own, pp=1_000_000 - own), steps=1))
    made = without_stages(ranks)
    tp = 1 if count // pp % 2 else 2
    job = filled(Job, tp=tp, cp=1, pp=pp, dp=count // pp // tp, world_size=count)
    return with_roles(replace(made, job=job))


def rendered(made: Diagnosis) -> list[str]:
    screen = render_screen(made, report="r/report.html")
    shown = [render_text(made), render_markdown(made), render_llm(made), screen]
    return [" ".join(text.split()) for text in shown]


@pytest.mark.parametrize(
    ("count", "pp", "late"),
    [(32, 8, 6), (32, 8, 0), (32, 8, 30), (24, 8, 7), (32, 32, 20), (64, 32, 21)],
    ids=["four a role", "first stage", "last stage", "three a role", "one a role", "two a role"],
)
def test_the_late_rank_of_a_small_role_is_named_everywhere(count: int, pp: int, late: int) -> None:
    made = by_number(count, pp, late)
    roles = known(made)
    assert [each.rank for each in roles.outliers] == [late]
    assert roles.outliers[0].lead.figure == COMPUTE
    assert roles.outliers[0].lead.by_frac == pytest.approx(0.08, abs=1e-3)
    assert drawn_groups(made.ranks, roles)[0][1] == [late]
    for text in (*rendered(made), render_html(made)):
        assert f"rank {late}" in text


def test_small_roles_without_a_late_rank_name_none() -> None:
    for count, pp in ((32, 8), (24, 8), (32, 32), (64, 32)):
        assert known(by_number(count, pp, -1)).outliers == []


def test_ends_of_a_pipeline_with_too_few_ranks_are_named_as_not_judged() -> None:
    """PP 32 and one rank a stage: thirty inner ones are held together, the two ends against nothing."""
    made = by_number(32, 32, -1)
    roles = known(made)
    assert list(roles.unjudged) == [31, 0]  # by compute
    said = outlier_sentence(made, roles)
    assert "none differs" not in said
    assert "30 that can be judged" in said
    for text in rendered(made):
        assert "rank 31" in text
    (grid,) = (each for each in roles_section(made, roles).grids if "too small" in each.caption)
    assert [row[0].text for row in grid.rows] == ["rank 31", "rank 0"]
    late = by_number(32, 32, 7)
    assert "rank 7 (stage 7, against all inner stages), compute" in outlier_sentence(late, known(late))
    assert ("of roles too small to judge", [31, 0]) in drawn_groups(made.ranks, roles)


def test_of_more_roles_than_rows_the_heaviest_are_shown() -> None:
    """40 stages of one rank; stages 25 to 39 compute 45 %, the others 39 %, the first 40, the last 48."""
    made = by_number(40, 40, -1)
    ranks = [
        build.rank(i, build.ledger(compute=450_000, pp=550_000), steps=1) if 25 <= i < 39 else rank
        for i, rank in enumerate(made.ranks)
    ]
    made = with_roles(replace(made, ranks=ranks))
    shown = [row[0].text for row in role_grid(known(made), 16).rows]
    assert shown == ["stage 0", *(f"stage {i}" for i in range(25, 40))]
    text, markdown = rendered(made)[:2]
    assert "stage 39 1" in text
    assert "stage 39" in markdown


def test_a_call_more_makes_no_role_of_its_own() -> None:
    counts = [12] * 32
    counts[7] = 13
    for steps in (0, 1):
        roles = known(calling(counts, 7, steps))
        assert [each.rank for each in roles.outliers] == [7]
        assert (len(roles.roles), list(roles.unjudged)) == (1, [])


def test_a_call_of_no_step_makes_no_role_of_its_own() -> None:
    """One call of TP in three steps, as at the edge of a window: 0.33 a step."""
    made = calling([36] * 32, 7, 3)
    rank = made.ranks[7]
    stray = replace(rank.communication[0], dimension="tp", count=1)
    ranks = [replace(r, communication=[*r.communication, stray]) if r is rank else r for r in made.ranks]
    roles = known(replace(made, ranks=ranks))
    assert [each.rank for each in roles.outliers] == [7]
    assert (len(roles.roles), list(roles.unjudged)) == (1, [])


def calling(counts: list[int], late: int, steps: int = 1) -> Diagnosis:
    """Ranks of DP with their calls; all compute 50 %, the late one 90 %."""
    ranks = []
    for i, count in enumerate(counts):
        own = 900_000 if i == late else 500_000
        row = replace(build.communication("dp", 1_000), count=count)
        made = build.rank(i, build.ledger(compute=own, dp=1_000_000 - own), steps=steps, rows=[row])
        ranks.append(made)
    return without_stages(ranks)


def test_a_rank_that_calls_twice_as_often_is_named_as_not_judged() -> None:
    made = calling([12] * 31 + [24], 31)
    roles = known(made)
    assert (roles.outliers, list(roles.unjudged)) == ([], [31])
    said = outlier_sentence(made, roles)
    assert "none differs" not in said
    assert "rank 31" in said


def swapped(order: bool, *, with_job: bool = True) -> Diagnosis:
    """64 ranks whose analysis took stages from rank numbers. order: their DP groups say PP is inside DP."""
    made = staged(64, straggles=False)
    ranks = []
    for i, rank in enumerate(made.ranks):
        group = f"dp {i % 8}" if order else f"dp {i // 16} {i % 2}"
        rows = [replace(build.communication("dp", 1_000), group=group)]
        ranks.append(replace(rank, communication=rows))
    pipeline = replace(made.analyses.pipeline, sources={"stages": "rank numbers, stages outermost"})
    changed = replace(made, ranks=ranks, analyses=replace(made.analyses, pipeline=pipeline))
    return changed if with_job else replace(changed, job=None)


@pytest.mark.parametrize("with_job", [True, False])
def test_stages_by_rank_number_that_groups_refute_are_dropped(with_job: bool) -> None:
    made = swapped(True, with_job=with_job)
    roles = known(made)
    assert roles.based_on not in ("stages", "numbers")
    assert roles.places.refuted
    assert "contradict" in roles_sentences(made, roles)[1]


@pytest.mark.parametrize("with_job", [True, False])
def test_groups_of_pp_give_the_stages_that_groups_of_dp_refuted(with_job: bool) -> None:
    """TP 2, PP 4, DP 8 in this order: rank 8 d + 2 s + t. The loss stage computes 48 %, the others 39 %, rank
    12 (d 1, s 2, t 0) 47 %: it alone differs."""
    made = swapped(True, with_job=with_job)
    ranks = []
    for i, rank in enumerate(made.ranks):
        own = 390_000 + 100 * (i // 8 % 5) + 90_000 * (i // 2 % 4 == 3) + 80_000 * (i == 12)
        names = {"tp": f"tp {i // 2}", "dp": f"dp {i % 8}", "pp": f"pp {i // 8} {i % 2}"}
        rows = [replace(build.communication(key, 1_000), group=group) for key, group in names.items()]
        ledger = build.ledger(compute=own, pp=1_000_000 - own)
        ranks.append(replace(build.rank(i, ledger, steps=1, rows=rows), input=rank.input))
    roles = known(replace(made, ranks=ranks))
    assert (roles.based_on, roles.places.refuted) == ("stages", True)
    assert [list(role.members[:4]) for role in roles.roles] == [
        [2 * s, 2 * s + 1, 2 * s + 8, 2 * s + 9] for s in range(4)
    ]
    assert [each.rank for each in roles.outliers] == [12]


def test_a_capture_without_steps_has_no_longer_step() -> None:
    """Twenty ranks, five steps of 1 ms; one has no marks, and a window of 5 ms."""
    ranks = [build.rank(i, build.ledger(compute=600_000, dp=400_000), steps=1) for i in range(20)]
    ranks[3] = build.rank(3, build.ledger(compute=3_000_000, dp=2_000_000))
    made = build.diagnosis(ranks)
    roles = known(made)
    assert (roles.outliers, roles.steps) == ([], False)
    assert length_ns(ranks[3], steps=roles.steps) == 5_000_000
    assert "step time" not in " ".join(roles_sentences(made, roles))


def test_a_longer_step_of_equal_shares_is_no_waiting() -> None:
    """Rank 19's step is 4 % longer at equal shares; rank 5 waits 5 % more in DP and idles less."""
    ranks = [build.rank(i, build.ledger(compute=60_000, dp=40_000), steps=1) for i in range(20)]
    ranks[19] = build.rank(19, build.ledger(compute=62_400, dp=41_600), steps=1)
    ranks[5] = build.rank(5, build.ledger(compute=55_000, dp=45_000), steps=1)
    roles = known(build.diagnosis(ranks))
    first, second = roles.outliers
    assert (first.rank, first.lead.figure, first.comm_alone) == (19, STEP, False)
    assert (second.rank, second.comm_alone) == (5, True)


@pytest.mark.parametrize("of", [5, 6, 7, 8, 9, 12, 16, 17, 32])
def test_chance_names_fewer_than_one_rank_in_a_hundred(of: int) -> None:
    """Ten figures of a normal spread, to which a hundredth is nothing: 200,000 ranks in roles of `of`."""
    rng = np.random.default_rng(7)
    values = rng.normal(0.5, 1.0, size=(200_000 // of, of))
    off = np.abs(values - np.median(values, axis=1)[:, None])
    limit = mads(of) * np.median(off, axis=1)[:, None]
    assert 1 - (1 - np.mean(off > limit)) ** 10 < 0.01
    # The rule itself says the same of the first roles.
    for row, far, most in zip(values[:20], off, limit, strict=False):
        beyond = {i for i in range(of) if far[i] > max(0.01, most[0])}
        assert set(find_deviations([COMPUTE], row[:, None])) == beyond


def test_chance_names_few_of_roles_of_four() -> None:
    """512 ranks in 128 stages of four with a normal spread of 1 % of the window: fewer than 1 % are named."""
    rng = np.random.default_rng(7)
    ranks = []
    for i in range(512):
        own = round(500_000 + 10_000 * rng.normal())
        ranks.append(build.rank(i, build.ledger(compute=own, pp=1_000_000 - own), steps=1))
    made = replace(without_stages(ranks), job=filled(Job, tp=2, cp=1, pp=128, dp=2, world_size=512))
    assert len(known(made).outliers) <= 5
