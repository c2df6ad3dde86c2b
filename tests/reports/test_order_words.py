"""Why a row stands before one that saves more, and what comes before a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.opportunities import opportunities
from perfdoc.reports.outlook import capture_first, next_thing
from perfdoc.reports.ranking import Ranked
from perfdoc.reports.savings import gain_in_words, holds, of_all, shared_with, why_this_order
from perfdoc.reports.screen import render_screen
from perfdoc.reports.text import render_text
from perfdoc.results import Diagnosis, Opportunity, RuleResult
from perfdoc.results.names import opening, within
from perfdoc.results.ranking import AS_SLOW
from tests.reports import build, build_choices
from tests.reports.fill import filled
from tests.reports.page import Page
from tests.reports.test_ranking import row


def stands(one: Opportunity) -> Ranked:
    return Ranked(row=one, rules=[], prediction=None)


SMALL = row("predicted", ["PD203"], "without_data", ms=10.0)
LARGE = row("predicted", ["PD202"], "without_gc", ms=20.0)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (LARGE, SMALL, ""),
        (SMALL, row("bound", ["PD501"], ms=20.0), "predictions first"),
        (SMALL, replace(LARGE, exact=False), "what changes numerics last"),
        (replace(SMALL, blamed="cause"), LARGE, "cause first"),
        (SMALL, LARGE, "the surer first"),
        (SMALL, row("unmeasured", ["PD301"]), ""),
    ],
)
def test_why_a_row_stands_before_one_that_saves_more(
    first: Opportunity, second: Opportunity, words: str
) -> None:
    assert why_this_order([stands(first), stands(second)]) == words


def test_each_reason_is_said_once() -> None:
    bound = stands(row("bound", ["PD501"], ms=20.0))
    assert why_this_order([stands(SMALL), bound, bound]) == "predictions first"


def test_a_capture_that_slows_the_host_is_made_again_first() -> None:
    made = build.one_rank()
    slowed = replace(SMALL, conditions=["something else", f"{AS_SLOW}Python frames"])
    first, then = capture_first(stands(slowed), made)
    assert (first.partition(":")[0], bool(then)) == ("capture again without Python frames", True)
    assert capture_first(stands(replace(SMALL, conditions=["something else"])), made) == ("", "")


def test_what_is_captured_first_is_the_first_row_of_the_page_and_in_every_rendering() -> None:
    """PD906 stands last in the diagnosis; a capture that no rule asks for has a row of its own."""
    slowed = replace(SMALL, codes=["PD501"], conditions=[f"{AS_SLOW}Python frames"], blamed="loss")
    rules = [replace(build_choices.rules()[0], code=code) for code in ("PD501", "PD906")]
    made = with_rows(rules, [slowed, row("capture", ["PD906"])])
    shown = opportunities(made)
    assert [each.code for each in shown] == ["PD906", "PD501"]
    html = Page(render_html(made))
    assert html.within("next", "a")[0].attributes["href"] == f"#{shown[0].anchor}"
    for text in (html.by_id("next").text, render_text(made), render_markdown(made)):
        assert "apture again without Python frames" in text.replace("\xa0", " ")
    lost = with_rows([], [])
    lost = replace(lost, ranks=[build.rank(0, build.ledger(compute=48, dp=52))])
    words = next_thing(lost)[1]
    assert words.split(":")[0] in Page(render_html(lost)).by_id("first").text
    assert words.split(":")[0] in render_markdown(lost)


def test_the_ledger_is_of_a_step_and_its_sum_the_head_of_the_page() -> None:
    """Two ranks, two steps each: 140 and 180 ms of compute are 80 ms a step, 70 and 90 of a rank."""
    ledgers = [build.ledger(compute=c * 10**6, dp=(200 - c) * 10**6) for c in (140, 180)]
    made = build.diagnosis([build.rank(i, each, steps=2) for i, each in enumerate(ledgers)])
    rows = [[cell.text for cell in each.children] for each in Page(render_html(made)).within("ledger", "tr")]
    assert rows[0][3] == "a step, ms"
    assert rows[1][2:7] == ["80.0 %", "80.000", "70.000 ms", "90.000 ms", "320,000,000"]
    assert rows[-1][2:4] == ["100.0 %", "100.000"]


def test_a_bound_larger_than_its_communication_says_of_what_else_it_is() -> None:
    """TP is exposed for 5 of 100 ms; removing it may end 15 ms of other waits."""
    made = build.diagnosis([build.rank(0, build.ledger(compute=80 * 10**6, tp=5 * 10**6, pp=15 * 10**6))])
    found = replace(build.rule("fires", "PD111"), ends="exposed_comm.tp", with_it="waits")
    bound = replace(row("bound", ["PD111"], ms=20.0), gain_frac=0.2)
    of = Ranked(row=bound, rules=[found], prediction=None)
    assert holds(of, made) == "5 ms exposed TP + 15 ms waits"
    assert holds(replace(of, row=replace(bound, gain_frac=0.1)), made) == ""  # of another step


def with_rows(rules: list[RuleResult], rows: list[Opportunity]) -> Diagnosis:
    return replace(build_choices.with_choices(build.one_rank()), rules=rules, opportunities=rows)


def test_the_page_and_the_terminal_say_the_same_of_all_rows() -> None:
    rows = [row("predicted", ["PD203"], "without_data", ms=10.0), row("bound", ["PD501"], ms=20.0)]
    made = with_rows(build_choices.rules(), rows)
    said = of_all([stands(each) for each in rows], "the step, 154 ms")
    assert said == ["of the step, 154 ms", "each alone", "predictions first"]
    assert "; ".join(said) in " ".join(render_screen(made, report=None).split())
    assert (
        f'id="order">{"; ".join(said).replace("of", "Of", 1).replace("154 ms", "154&nbsp;ms")}'
        in render_html(made)
    )


def test_memory_is_what_a_change_frees_and_nothing_is_cut() -> None:
    """The finding of 400 characters stands in its row, whole; its cell has 8 GiB, not a dash."""
    long = "at most 8.00 GiB would go: softmax in " + "own_attention_" * 24 + "end"
    rule = filled(RuleResult, code="PD511", state="fires", level="problem", title="Scores", reason=long)
    plain = row("unmeasured", ["PD511"])
    page = render_html(with_rows([replace(rule, gain=None, frees_bytes=8 << 30)], [plain]))
    cell = page[page.index('<span class="gain">') :].partition("</summary>")[0]
    assert "≤ 8.00 GiB" in cell
    assert "not measured" not in cell
    assert long in page
    assert "left out" not in page[page.index("<main>") : page.index('<div id="details">')]
    unknown = render_html(with_rows([replace(rule, gain=None, frees_bytes=None)], [plain]))
    assert (
        "not measured in time" in unknown[unknown.index('<span class="gain">') :].partition("</summary>")[0]
    )


def test_a_rule_says_itself_why_its_saving_is_not_its_part_of_the_bar() -> None:
    first, second = build_choices.rules()[:2]
    gc, data = (stands(SMALL), stands(LARGE))
    told = replace(gc, rules=[replace(second, sized_by="collected in 1 of 9 steps")])
    assert "(collected in 1 of 9 steps)" in gain_in_words(told, build.one_rank(), short=True)
    behind = replace(data, rules=[replace(first, behind={second.code: "on all ranks"})])
    assert (shared_with(behind, told), shared_with(told, behind)) == ("on all ranks", "")


@pytest.mark.parametrize(("size", "then"), [(8, "if it is transfer"), (1, "")])
def test_a_prediction_of_some_ranks_says_of_how_many(size: int, then: str) -> None:
    """Where what is lost is communication, the others are captured first: it may be waiting for them."""
    made = build_choices.with_choices(build.one_rank())
    assert made.job is not None
    made = replace(made, job=replace(made.job, world_size=size))
    ranked = replace(stands(replace(SMALL, blamed="loss")), prediction=made.analyses.gains.predictions[0])
    said = gain_in_words(ranked, made)
    assert ("predicted from 1 of 8 ranks" in said) == (size == 8)
    assert capture_first(ranked, made)[1] == then


def test_a_first_letter_stays_as_it_is_of_an_abbreviation() -> None:
    assert within("GPU 5 computes") == "GPU 5 computes"
    assert within("The last stage") == "the last stage"
    assert (opening("a"), opening(""), within("")) == ("A", "", "")
