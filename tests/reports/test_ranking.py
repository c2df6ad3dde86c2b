"""The one ranking in every rendering: order, rows without a rule, bounds, trifles, information."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.opportunities import opportunities, trifles
from perfdoc.reports.outlook import opening_words, outlook
from perfdoc.reports.ranking import in_order, ranking
from perfdoc.reports.sections import sections_of
from perfdoc.reports.sections.section import Grid, opening
from perfdoc.reports.text import render_text
from perfdoc.results import Diagnosis, Opportunity, from_json, to_json
from perfdoc.results.ranking import OpportunityKind
from tests.reports import build
from tests.reports.build_choices import ceiling, gain, with_choices
from tests.reports.build_memory import with_memory_and_replay
from tests.reports.page import Page


def row(
    kind: OpportunityKind, codes: list[str], key: str = "", ms: float = 0.0, **changes: object
) -> Opportunity:
    gains = {"predicted": gain(ms, key=key), "bound": ceiling(ms), "trifle": gain(ms, key=key)}
    return replace(
        Opportunity(
            kind=kind,
            codes=codes,
            key=key,
            gain=gains.get(kind),
            gain_per="step",
            gain_frac=ms / 154.48 if kind in gains else None,
        ),
        **changes,  # type: ignore[arg-type]
    )


def ranked() -> Diagnosis:
    """PD501 is known by a bound that is most of the step, though it informs; no rule proposes norms."""
    made = with_choices(build.one_rank())
    rules = [replace(r, level="information") if r.code == "PD501" else r for r in made.rules]
    order = [
        row("bound", ["PD501"], ms=100.0),
        row("predicted", ["PD203"], "without_data", ms=10.0),
        row("predicted", [], "norms_alone", ms=5.0, exact=False),
        row("unmeasured", ["PD301"]),
        row("trifle", ["PD202"], "without_gc", ms=0.2),
        row("capture", ["PD902"]),
    ]
    return replace(made, rules=rules, opportunities=order)


MADE = ranked()


def test_every_report_has_the_order_of_the_ranking() -> None:
    assert from_json(to_json(MADE)).opportunities == MADE.opportunities
    firing = [r for r in MADE.rules if r.state == "fires"]
    assert [r.code for r in in_order(MADE, firing)] == ["PD501", "PD203", "PD301", "PD202", "PD902"]
    assert [(o.code, o.gain) for o in opportunities(MADE)] == [
        *(("PD501", "≤ 100 ms"), ("PD203", "10 ms"), ("", "5 ms"), ("PD301", "—"))
    ]
    for page in (render_text(MADE), render_markdown(MADE)):
        table = page[page.index("What to do") :]
        places = [table.index(said) for said in ("PD501", "PD203", "Norms alone", "PD301")]
        assert places == sorted(places)
        assert table.index("Trifles") > table.index("PD301")


def test_the_first_of_the_ranking_is_in_the_headline_as_what_it_is() -> None:
    first = "Fragmented memory (PD501): blocks do not fit; saves at most 100 ms, 64.7 % of the step"
    assert outlook(MADE).startswith(first)
    alone = replace(MADE, combined=None, opportunities=MADE.opportunities[2:])
    saves = "\N{MINUS SIGN}5 ms per step (4.5 ms to 5.5 ms), 3.2 % of the step, predicted"
    assert outlook(alone) == f"Norms alone: {saves}; changes what training computes."
    open_ = replace(MADE.opportunities[1], conditions=["shapes are static", "it is off", "the host keeps up"])
    said = outlook(replace(MADE, combined=None, opportunities=[open_]))
    assert said.endswith("predicted, if shapes are static, it is off and the host keeps up.")
    assert said.startswith("Without data (PD203)")  # the change is what to do
    gains = MADE.analyses.gains
    settings: dict[str, bool | int | str | None] = {"cuda_graph_impl": "local"}
    named = [replace(p, settings=settings) if p.key == open_.key else p for p in gains.predictions]
    other = replace(MADE.analyses, gains=replace(gains, predictions=named))
    said = outlook(replace(MADE, combined=None, opportunities=[open_], analyses=other))
    assert said.startswith(f"{ranking(MADE)[1].rules[0].title}: without data (PD203)")
    for lead in ("trifle", "capture", "unmeasured"):
        rest = [o for o in MADE.opportunities if o.kind == lead]
        named = [r for r in MADE.rules if r.code in rest[0].codes]
        assert outlook(replace(MADE, combined=None, opportunities=rest, rules=named)) == ""
    # What was simulated gains, though it is not promised together with anything: not "no predicted gain".
    assert MADE.combined is not None
    none = replace(MADE.combined, accepted=[], gain=None)
    said = outlook(replace(MADE, combined=none, opportunities=MADE.opportunities[2:]))
    assert said.startswith("Norms alone")
    assert "No predicted gain" not in said
    named = [r for r in MADE.rules if r.code == "PD501"]
    bounds = replace(MADE, combined=none, opportunities=MADE.opportunities[:1], rules=named)
    assert "PD501" in (said := outlook(bounds))
    assert "No predicted gain" not in said  # beside what may gain 65 % it says the wrong thing


@pytest.mark.parametrize(("frac", "leads"), [(0.99, True), (0.01, False)])
def test_the_largest_finding_stands_before_smaller_losses(frac: float, leads: bool) -> None:
    made = replace(MADE, opportunities=[replace(MADE.opportunities[0], gain_frac=frac)])
    first, below = opening_words(made)
    assert ("(PD501)" in first, first == made.verdict) == (leads, not leads)
    assert ("(PD501)" in below, made.verdict in below) == (not leads, leads)
    for page in (render_text(made), render_markdown(made), Page(render_html(made)).text):
        said = " ".join(page.replace("\xa0", " ").split())
        assert (said.index("blocks do not fit") < said.rindex(made.verdict[:20])) == leads


def test_a_problem_without_a_figure_says_what_it_is_on_the_page() -> None:
    rules = [replace(rule, reason="4 stages wait for one") for rule in MADE.rules]
    made = replace(MADE, rules=rules, opportunities=[row("unmeasured", ["PD301"])])
    shown = opportunities(made)[0]
    assert shown.title.endswith(": 4 stages wait for one")
    sized = replace(made, opportunities=[row("bound", ["PD301"], ms=1.0)])
    assert "4 stages" not in opportunities(sized)[0].title


def test_the_headline_s_first_change_is_the_first_row_of_every_table() -> None:
    for at in range(3):
        made = replace(MADE, opportunities=MADE.opportunities[at:])
        first = ranking(made)[0]
        assert outlook(made).lower().find(first.title.lower()) in range(20)
        for page in (render_text(made), render_markdown(made)):
            table = page[page.index("What to do") :]
            rest = [table.index(opening(r.title)) for r in ranking(made)[1:] if r.sized]
            assert all(table.index(opening(first.title)) < place for place in rest)


def test_the_page_shows_changes_that_no_rule_proposes_and_names_trifles() -> None:
    page = Page(render_html(MADE))
    shown = page.by_id("opportunity-3").text
    assert "Norms alone." in shown
    assert "changes what training computes" in shown
    assert "without gc (200 µs)" in trifles(MADE)
    assert trifles(MADE) in page.text.replace("\xa0", " ")
    # Every rule that fires is on the page once: what is too small, or found by two rules, is folded.
    folded = page.by_id("information").text
    assert [code for code in ("PD501", "PD203", "PD202", "PD902") if code in folded] == ["PD202", "PD902"]
    both = row("predicted", ["PD203", "PD501"], "without_data", ms=10.0)
    assert "PD501" in Page(render_html(replace(MADE, opportunities=[both]))).by_id("information").text


def test_what_takes_open_conditions_says_so_and_is_not_sure() -> None:
    sure = row("predicted", ["PD203"], "without_data", ms=10.0)
    unsure = replace(sure, conditions=["shapes are static"])
    for made, confidence, told in ((sure, "high", False), (unsure, "low", True)):
        (first, *_) = opportunities(replace(MADE, opportunities=[made]))
        assert (first.confidence, "if shapes are static" in first.title) == (confidence, told)
        for page in (render_text, render_markdown):
            said = " ".join(page(replace(MADE, opportunities=[made])).split())
            assert ("Under conditions: without data, if shapes are static." in said) == told


def test_a_finding_that_a_simulated_change_speaks_for_shows_the_change() -> None:
    """No setting of PD301's is what was simulated: its row says what was, not its own first remedy."""
    rows = [row("predicted", ["PD301"], "norms_alone", ms=5.0)]
    (first, *_) = opportunities(replace(MADE, opportunities=rows))
    assert (first.code, first.action, first.gain) == ("PD301", "Norms alone.", "5 ms")


def test_a_diagnosis_that_ranked_nothing_is_ranked_by_its_rules() -> None:
    found = ranking(replace(MADE, opportunities=[]))
    assert [(r.row.kind, r.rules[0].code) for r in found] == [
        *(("predicted", "PD203"), ("predicted", "PD202"), ("bound", "PD501")),
        *(("unmeasured", "PD301"), ("capture", "PD902")),
    ]
    assert [r.leads for r in found] == [True, True, True, True, False]


def test_what_is_left_out_is_told_with_its_reason() -> None:
    gains = MADE.analyses.gains
    out = [
        replace(p, left_out="set already: norms") if p.key == "norms_alone" else p for p in gains.predictions
    ]
    made = with_memory_and_replay(MADE)
    made = replace(made, analyses=replace(made.analyses, gains=replace(gains, predictions=out)))
    # What a rule proposes all the same has a row, and is not apart.
    assert "norms alone" in [r[0].text for r in _grids(made)[-1].rows]
    predicted, apart = _grids(replace(made, opportunities=[]))[-2:]
    assert ["norms alone", "1.000 ms", "set already: norms"] in [[c.text for c in r] for r in apart.rows]
    assert "norms alone" not in [r[0].text for r in predicted.rows]


def _grids(made: Diagnosis) -> list[Grid]:
    (section,) = [s for s in sections_of(made) if s.key == "path"]
    return section.grids
