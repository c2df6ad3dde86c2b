"""Many ranks by role: who does the same work, what is usual, who differs, and what the page holds of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from perfdoc.analyzers.roles.measure import find_deviations, make_outlier
from perfdoc.reports.html import render_html
from perfdoc.reports.leaves import LEAVES, leaf_values
from perfdoc.reports.sections.roles import outlier_sentence
from perfdoc.results import Diagnosis
from perfdoc.results.roles import MANY, RoleDeviation
from tests.reports import build
from tests.reports.build_roles import late, layout_unknown, roles_of, staged, with_timeline
from tests.reports.page import Page

COMPUTE, TP = "compute", "exposed_comm.tp"


def deviations(values: list[float], figure: str = COMPUTE) -> dict[int, RoleDeviation]:
    """Of ranks of which one figure is known."""
    far = find_deviations([figure], np.array(values)[:, None])
    return {place: each for place, (each,) in far.items()}


@cache
def page64() -> Page:
    return Page(render_html(with_timeline(64)))


def test_a_rank_is_far_by_its_distance_in_median_deviations() -> None:
    """Of 200 values 140 are 0.500 give or take 0.002, so that is the median deviation. Of so many values
    6 * (1 + 160 / 40,000) = 6.024 of it are far, 0.01205: 0.513 and 0.487 are farther, 0.512 is not."""
    found = deviations([0.5] * 57 + [0.502] * 70 + [0.498] * 70 + [0.512, 0.513, 0.487], COMPUTE)
    assert {place: round(far.by_frac, 6) for place, far in found.items()} == {198: 0.013, 199: -0.013}
    assert all(round(far.mad_frac, 6) == 0.002 for far in found.values())


def test_less_than_a_hundredth_of_the_window_is_not_far() -> None:
    """Of equal ranks the median deviation is 0: then the hundredth alone decides."""
    assert list(deviations([0.5] * 9 + [0.5099, 0.5101], COMPUTE)) == [10]


def test_what_a_rank_spends_itself_leads_before_what_it_waits_less() -> None:
    """8 % more compute and 10 % less waiting: the first is why it is looked at."""
    more = deviations([0.4] * 6 + [0.48], COMPUTE)[6]
    less = deviations([0.6] * 6 + [0.5], TP)[6]
    one = make_outlier(6, 0, [less, more], among_stages=False)
    assert (one.lead, one.others, one.comm_alone) == (more, [less], False)
    assert make_outlier(6, 0, [less], among_stages=False).comm_alone


def test_up_to_sixteen_ranks_there_are_no_roles() -> None:
    assert staged(MANY).analyses.roles is None
    assert "roles" not in [e.attributes.get("id") for e in Page(render_html(staged(MANY))).elements]


def test_roles_are_stages_and_the_late_rank_is_named_with_its_partner() -> None:
    made = staged(64)
    roles = roles_of(made)
    assert [role.label for role in roles.roles] == [
        "stage 0, embedding",
        "stage 1",
        "stage 2",
        "stage 3, loss",
    ]
    assert [list(role.members) for role in roles.roles] == [
        list(range(16 * s, 16 * s + 16)) for s in range(4)
    ]
    # 390,000 ns and 0 to 400 ns more: the middle of sixteen ranks is 200 ns more.
    assert roles.roles[1].shares[COMPUTE].median_frac == pytest.approx(0.3902)
    first, second = roles.outliers
    assert (first.rank, first.lead.figure, first.comm_alone) == (late(64), COMPUTE, False)
    assert first.lead.by_frac == pytest.approx(0.08, abs=1e-3)
    assert (second.rank, second.lead.figure, second.comm_alone) == (late(64) - 1, TP, True)
    said = outlier_sentence(made, roles)
    assert said.startswith(
        "64 ranks in 4 roles; 2 of them differ: rank 21 (stage 1), compute +8.0 % of the window"
    )
    assert "1 rank only in communication" in said


def test_without_a_late_rank_none_differs() -> None:
    made = staged(64, straggles=False)
    roles = roles_of(made)
    assert roles.outliers == []
    assert "none differs" in outlier_sentence(made, roles)


def test_places_follow_rank_numbers_where_groups_agree() -> None:
    """Rank 45 of TP 2, DP 8 and four stages: 45 = 2 * 16 + 6 * 2 + 1."""
    roles = roles_of(staged(64))
    places = roles.places
    assert (places.sizes, roles.role_of[45]) == ({"tp": 2, "dp": 8}, 2)
    assert (places.of["tp"][45], places.of["dp"][45]) == (1, 6)
    # 32 groups of TP, 8 of DP and 16 of PP.
    assert places.agreeing == 32 + 8 + 16


def test_a_group_that_contradicts_rank_numbers_leaves_places_unknown() -> None:
    """The first two TP groups have swapped a member: ranks 0 and 2, 1 and 3. Stages are of the pipeline's
    groups, which do not depend on numbers."""
    made = staged(64)
    pipeline = replace(made.analyses.pipeline, sources={"stages": "groups of the capture"})
    made = replace(made, analyses=replace(made.analyses, pipeline=pipeline))
    ranks = list(made.ranks)
    for number, group in ((1, "tp 1"), (2, "tp 0")):
        rows = [
            replace(row, group=group) if row.dimension == "tp" else row for row in ranks[number].communication
        ]
        ranks[number] = replace(ranks[number], communication=rows)
    roles = roles_of(replace(made, ranks=ranks))
    assert roles.places.sizes == {}
    assert len(roles.roles) == 4  # the pipeline's analysis knows stages all the same


def test_without_a_layout_ranks_that_communicate_alike_are_a_role() -> None:
    roles = roles_of(layout_unknown(64))
    assert roles.based_on == "calls"
    assert [(role.label, len(role.members)) for role in roles.roles] == [("group 1", 48), ("group 2", 16)]
    assert roles.role_of[:17] == [1] * 16 + [0]
    one = roles_of(build.many_ranks(40))
    assert (one.based_on, [role.label for role in one.roles]) == ("one", ["all ranks"])


def test_the_page_shows_roles_before_time_and_no_row_for_every_rank() -> None:
    page = page64()
    assert page.problems == []
    ids = [e.attributes["id"] for e in page.elements if e.tag == "section"]
    assert ids[:3] == ["opportunities", "roles", "time"]
    headings = [e.text for e in page.within("roles", "th")]
    assert "stage 0, embedding" in headings
    assert "rank 21" in headings
    assert page.by_id("ranks").children[1].children == []
    assert (
        sum(e.attributes.get("class") == "rank" for e in page.elements if "timeline-still" in e.inside)
        <= MANY + 6
    )
    assert [e.text for e in page.elements if e.tag == "noscript"] != []


def island_of(html: str) -> dict[str, list[object]]:
    found = re.search(r'id="ranks-data">([^<]*)</script>', html)
    assert found is not None
    read: dict[str, list[object]] = json.loads(found[1])
    return read


def test_the_island_holds_every_rank_s_figures_exactly() -> None:
    made = staged(64)
    data = island_of(render_html(made))
    assert data["labels"] == [rank.label for rank in made.ranks]
    assert data["window"] == [rank.window.duration_ns for rank in made.ranks]
    columns = {leaf["label"]: leaf["ns"] for leaf in data["leaves"]}  # type: ignore[index]
    values = [leaf_values(rank.ledger_ns) for rank in made.ranks]
    assert columns == {
        LEAVES[i].label: [row[i] for row in values]
        for i in range(len(LEAVES))
        if any(row[i] for row in values)
    }
    assert data["files"][3] == "rank3.sqlite"
    assert data["far"] == {"21": "+8.0 %", "20": "+8.0 %"}


HOSTILE = ["</script><script>document.title='pwned'</script>", "<!--<script>", "]]>&amp;\u2028\u202e", '"\\']


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_data(text: str) -> None:
    made = staged(64)
    ranks = [replace(rank, label=f"{text} {i}") for i, rank in enumerate(made.ranks)]
    inputs = [replace(item, path=f"/data/{text}") for item in made.inputs]
    html, plain = render_html(replace(made, ranks=ranks, inputs=inputs)), render_html(made)
    page = Page(html)
    assert page.problems == []
    assert [e.tag for e in page.elements if e.tag == "script"] == [
        e.tag for e in Page(plain).elements if e.tag == "script"
    ]
    labels = island_of(html)["labels"]
    assert len(set(labels)) == 64
    assert not [c for c in html if not c.isprintable() and c != "\n"]


@pytest.mark.slow
def test_the_page_of_a_thousand_ranks_with_the_largest_timeline_is_small() -> None:
    html = render_html(with_timeline(1024))
    assert len(html.encode()) < 6_000_000
    assert len(Page(html).elements) < 6_000


def test_ranks_without_time_and_roles_of_few_do_no_harm() -> None:
    empty: Diagnosis = build.diagnosis([build.rank(None, build.ledger()) for _ in range(20)])
    assert Page(render_html(empty)).problems == []
    assert roles_of(empty) is not None
    made = staged(64)
    stages = [replace(row, stage=row.rank) for row in made.analyses.pipeline.stages]
    apart = replace(made.analyses, pipeline=replace(made.analyses.pipeline, stages=stages))
    roles = roles_of(replace(made, analyses=apart, job=None))
    assert len(roles.roles) == 64
    assert "none differs" not in outlier_sentence(made, roles)
