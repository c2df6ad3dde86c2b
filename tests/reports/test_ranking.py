"""What there is to do: its order, actions, gains, confidence, and sets that can be chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.reports.headline import headline, verdict_figures
from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.opportunities import confidence_in, dialects_of, opportunities, trifles
from perfdoc.reports.outline import sections_of
from perfdoc.reports.outlook import gain_together, next_thing, opening_words
from perfdoc.reports.screen import render_screen
from perfdoc.reports.sections.section import Grid
from perfdoc.reports.settings import snippets
from perfdoc.reports.text import render_text
from perfdoc.results import Diagnosis, Gain, Opportunity
from perfdoc.results.ranking import OpportunityKind
from perfdoc.results.rules import NOTHING_TO_SET
from perfdoc.results.waits import LateRank
from tests.reports import build, jobs
from tests.reports.build_choices import ceiling, gain, with_choices
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


RANKED = ranked()
MADE = with_choices(build.one_rank())
PAGE = Page(render_html(MADE))


def test_the_verdict_is_the_first_sentence_of_every_rendering_and_its_reason_the_next() -> None:
    made = replace(RANKED, verdict="The first stage is long.", why="It computes twice as long.")
    first, below = opening_words(made)
    assert (first, below.startswith(made.why)) == (made.verdict, True)
    for page in (render_text(made), render_markdown(made), Page(render_html(made)).text):
        said = " ".join(page.replace("\xa0", " ").split())
        assert -1 < said.index(made.verdict) < said.index(made.why)


def test_what_is_next_is_of_the_verdict_or_of_its_loss() -> None:
    """No row is of the largest loss, 52 % of exposed communication: what to capture comes first. A row that
    the verdict is about is next itself, and where nothing much is lost the first row is."""
    lossy = replace(RANKED, ranks=[build.rank(0, build.ledger(compute=48, dp=52))])
    assert next_thing(lossy) == (None, "Capture all ranks together: they tell waiting from transfer.")
    # With all ranks here there is nothing more to capture.
    assert lossy.job is not None
    alone = replace(lossy, job=replace(lossy.job, world_size=1))
    assert (next_thing(alone)[0], "Capture" in next_thing(alone)[1]) == (None, False)
    # Whom these steps cannot tell from uneven data, more of them can.
    late = LateRank(rank=0, name="rank 0", wait_frac=0.6, cause="compute", compute_is_sure=False)
    skew = replace(alone.analyses.skew, latest=late)
    unsure = replace(alone, analyses=replace(alone.analyses, skew=skew))
    assert next_thing(unsure)[1].startswith("Capture more steps")
    blamed = replace(lossy.opportunities[0], blamed="loss")
    row_, words = next_thing(replace(lossy, opportunities=[blamed, *lossy.opportunities[1:]]))
    assert (row_ is not None and row_.rules[0].code, words) == ("PD501", "")
    sound = replace(RANKED, ranks=[build.rank(0, build.ledger(compute=96, dp=4))])
    row_, words = next_thing(sound)
    assert (row_ is not None and row_.rules[0].code, words) == ("PD501", "")


def test_of_a_pipeline_of_unknown_layout_the_longest_stage_and_the_layout_are_next() -> None:
    """Three stages compute 60, one 90 of 100."""
    ranks = [
        build.rank(number, build.ledger(compute=ms, pp=100 - ms))
        for number, ms in enumerate((60, 60, 60, 90))
    ]
    _, said = next_thing(replace(RANKED, ranks=ranks))
    assert said.startswith("Compare rank 3 with")
    assert "--set pp=N" in said
    _, said = next_thing(replace(RANKED, ranks=ranks[:2]))
    assert "Compare" not in said
    both = [build.rank(number, build.ledger(compute=60, dp=40)) for number in range(2)]
    _, said = next_thing(replace(RANKED, ranks=both, job=None))
    assert "if some are missing" in said


def test_a_problem_without_a_figure_says_what_it_is_on_the_page() -> None:
    rules = [replace(rule, reason="4 stages wait for one") for rule in RANKED.rules]
    made = replace(RANKED, rules=rules, opportunities=[row("unmeasured", ["PD301"])])
    shown = opportunities(made)[0]
    assert shown.title.endswith(": 4 stages wait for one")
    sized = replace(made, opportunities=[row("bound", ["PD301"], ms=1.0)])
    assert "4 stages" not in opportunities(sized)[0].title


def test_the_page_shows_changes_that_no_rule_proposes_and_names_trifles() -> None:
    page = Page(render_html(RANKED))
    shown = page.by_id("opportunity-3").text
    assert "Norms alone." in shown
    assert "changes numerics" in shown
    assert "without gc (200 µs)" in trifles(RANKED)
    assert trifles(RANKED) in page.text.replace("\xa0", " ")
    # Every rule that fires is on the page once: what is too small, or found by two rules, is folded.
    folded = page.by_id("information").text
    assert [code for code in ("PD501", "PD203", "PD202", "PD902") if code in folded] == ["PD202", "PD902"]
    both = row("predicted", ["PD203", "PD501"], "without_data", ms=10.0)
    assert "PD501" in Page(render_html(replace(RANKED, opportunities=[both]))).by_id("information").text


def test_what_takes_open_conditions_says_so_and_is_not_sure() -> None:
    sure = row("predicted", ["PD203"], "without_data", ms=10.0)
    unsure = replace(sure, conditions=["shapes are static"])
    for made, confidence, told in ((sure, "high", False), (unsure, "low", True)):
        (first, *_) = opportunities(replace(RANKED, opportunities=[made]))
        assert (first.confidence, "if shapes are static" in first.title) == (confidence, told)
        for page in (render_text, render_markdown):
            said = " ".join(page(replace(RANKED, opportunities=[made])).split())
            assert ("ithout data, if shapes are static" in said) == told


def test_a_finding_that_a_simulated_change_speaks_for_shows_the_change() -> None:
    """No setting of PD301's is what was simulated: its row says what was, not its own first remedy."""
    rows = [row("predicted", ["PD301"], "norms_alone", ms=5.0)]
    (first, *_) = opportunities(replace(RANKED, opportunities=rows))
    assert (first.code, first.action, first.ranked.figure) == ("PD301", "Norms alone.", "5 ms")


def test_what_is_left_out_is_told_with_its_reason() -> None:
    data = jobs.job("data")
    gains = data.analyses.gains
    out = [replace(p, left_out="set already") if p.key == "without_gc" else p for p in gains.predictions]
    made = replace(data, analyses=replace(data.analyses, gains=replace(gains, predictions=out)))
    (change,) = [p.change for p in out if p.key == "without_gc"]
    # What a rule proposes all the same has a row, and is not apart.
    *_, predicted, apart = _grids(made)
    assert change in [r[0].text for r in predicted.rows]
    *_, predicted, apart = _grids(replace(made, opportunities=[]))
    assert [change, "set already"] in [[r[0].text, r[2].text] for r in apart.rows]
    assert change not in [r[0].text for r in predicted.rows]


def _grids(made: Diagnosis) -> list[Grid]:
    (section,) = [s for s in sections_of(made) if s.key == "path"]
    return list(section.grids)


def test_opportunities_come_by_gain_each_with_an_action() -> None:
    found = [(o.code, o.action, o.ranked.figure, o.ranked.band, o.ranked.share) for o in opportunities(MADE)]
    assert found == [
        ("PD203", "Without data.", "10 ms", "5 ms to 15 ms", "6.5 %"),
        ("PD202", "Without gc.", "2 ms", "1.8 ms to 2.2 ms", "1.3 %"),
        ("PD501", "Fragmented memory.", "≤ 5 ms", "", "3.2 %"),
        ("PD301", "A long bubble.", "—", "", ""),
    ]
    assert [o.anchor for o in opportunities(MADE)] == ["PD203", "PD202", "PD501", "PD301"]


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (gain(10.0, spread=0.25), "high"),
        (gain(10.0, spread=0.26), "medium"),
        (gain(10.0, spread=0.6), "medium"),
        (gain(10.0, spread=0.61), "low"),
        (gain(0.0), "low"),
        (ceiling(5.0), "low"),
        (Gain(low_ms=None, mid_ms=None, high_ms=None, method="none", assumptions=["no"]), "not predicted"),
        (None, "not predicted"),
    ],
)
def test_confidence_is_the_width_of_the_band_and_the_method(found: Gain | None, word: str) -> None:
    assert confidence_in(found) == word


def test_a_forbidden_setting_is_named_and_never_offered_to_paste() -> None:
    (gc,) = [o for o in opportunities(MADE) if o.code == "PD202"]
    assert gc.ranked.rule is not None
    allowed, forbidden = gc.ranked.rule.advice
    assert [text for spelled in snippets(allowed) for _, text in spelled.lines] == [
        *("--manual-gc true", "export X_MANUAL_GC=true", "manual_gc=true")
    ]
    assert (forbidden.forbidden, snippets(forbidden)) == ("tp is 1", [])
    assert dialects_of(opportunities(MADE)) == [
        *(("megatron_lm", "Megatron-LM"), ("env", "environment"), ("perfdoc", "perfdoc run"))
    ]
    assert "other-knob" not in PAGE.text
    assert "Do not set: other_knob: false → 4" in PAGE.text


def test_the_manager_s_sentence_is_in_every_rendering() -> None:
    # 12 of 154.480 ms
    said = (
        "3 changes together (without data, without gc, norms alone): "
        "\N{MINUS SIGN}12 ms per step (10.8 ms to 13.2 ms)"
    )
    assert gain_together(MADE) == said + ", 7.8 % of the step, predicted."
    assert said in PAGE.text.replace("\xa0", " ")
    assert said in " ".join(render_text(MADE).split())
    assert said in render_markdown(MADE)
    assert gain_together(build.one_rank()) == ""


def test_where_nothing_gains_the_sentence_says_so() -> None:
    assert MADE.combined is not None
    none = replace(MADE.combined, accepted=[], gain=None, sets=[])
    made = replace(
        MADE, combined=none, rules=[], opportunities=[]
    )  # findings with a figure speak for themselves
    assert "No predicted gain: of 3 simulated changes none" in opening_words(made)[1]
    gains = MADE.analyses.gains
    replayed = [p for p in gains.predictions if p.gain.method == "replay"]
    analyses = replace(MADE.analyses, gains=replace(gains, predictions=replayed[:1]))
    assert (
        "No predicted gain: of 1 simulated change none" in opening_words(replace(made, analyses=analyses))[1]
    )


def test_a_change_that_costs_time_says_so() -> None:
    assert MADE.combined is not None
    assert MADE.combined.gain is not None
    slower = replace(MADE.combined.gain, low_ms=-3.0, mid_ms=-2.0, high_ms=-1.0)
    costly = replace(MADE.opportunities[0], gain=slower)
    (found,) = opportunities(replace(MADE, opportunities=[costly]))
    assert (found.ranked.figure, found.ranked.band, found.confidence) == ("costs 2 ms", "1 ms to 3 ms", "low")
    said = gain_together(replace(MADE, combined=replace(MADE.combined, gain=slower)))
    assert "3 changes" in said
    assert said.endswith("they gain nothing.")


def test_codes_that_are_no_ids_get_numbers() -> None:
    rules = [replace(MADE.rules[0], code=code) for code in ("PD1", 'x" y')]
    rows = [replace(MADE.opportunities[0], codes=[code]) for code in ("PD1", "PD1", 'x" y')]
    anchors = [o.anchor for o in opportunities(replace(MADE, rules=rules, opportunities=rows))]
    assert anchors == ["opportunity-1", "opportunity-2", "opportunity-3"]


def test_known_facts_of_the_job_are_listed_with_their_source() -> None:
    text = PAGE.by_id("facts").text
    assert "llama3-8b" in text
    assert "tp 8, pp 2, dp 4, sequence parallel" in text
    assert "128 sequences per step, 8,192 tokens per sequence" in text
    assert "--config job.yaml" in text
    assert "recompute" not in text  # not known: no row
    assert "9,150" in PAGE.text
    assert "Tokens/s per GPU" in PAGE.text
    cpu = replace(MADE.ranks[0], gpu=replace(MADE.ranks[0].gpu, name="CPU"))
    figures = {f.label: f.value for f in headline(replace(MADE, ranks=[cpu]))}
    assert figures["Tokens/s per rank"] == "9,150"


def test_the_largest_loss_has_something_to_do_where_no_row_is_about_it() -> None:
    """94.4 % of a CPU rank's time runs Python between operators; 0.2 ms of advice say nothing of that."""
    rank = build.rank(0, build.ledger(compute=56, idle_host=944))
    made = build.diagnosis([replace(rank, gpu=replace(rank.gpu, name="CPU"))])
    shown = render_screen(made, report=None)
    assert "Next: See what Python does: `py-spy record --pid PID` while it trains" in shown
    assert "with_stack=True" in next_thing(build.diagnosis([rank]))[1]
    little = build.diagnosis([build.rank(0, build.ledger(compute=960, idle_host=40))])
    assert "stacks" not in next_thing(little)[1]


def test_few_graphs_leave_graphs_to_be_advised() -> None:
    """Of 100 ns of kernels 1 or 60 are in graphs."""
    rank = build.rank(0, build.ledger(compute=500, idle_launch_latency=500))
    for graph_ns, most in ((1, False), (60, True)):
        graphs = replace(rank.host.graphs, graph_ns=graph_ns, kernel_ns=100)
        made = build.diagnosis([replace(rank, host=replace(rank.host, graphs=graphs))])
        assert ("or replay graphs" in next_thing(made)[1], "already" in next_thing(made)[1]) == (
            not most,
            most,
        )


def test_what_nothing_can_be_done_about_is_below_the_list() -> None:
    rows = [row("bound", ["PD501"], ms=100.0), row("predicted", ["PD202"], "without_gc", ms=2.0)]
    rules = [replace(r, remedy=NOTHING_TO_SET, advice=[]) if r.code == "PD501" else r for r in MADE.rules]
    shown = render_screen(replace(MADE, opportunities=rows, rules=rules), report=None)
    listed, below = shown.split("Nothing to change here", 1)
    assert ("PD501" in listed, "PD202" in listed, "PD501" in below) == (False, True, True)


def test_what_is_not_known_stands_behind_what_is() -> None:
    def labels(value: float | None) -> list[str]:
        mfu = replace(MADE.mfu, value=value, peak_flops=989e12, peak_kind="datasheet")
        return [figure.label for figure in verdict_figures(replace(MADE, mfu=mfu))]

    assert labels(0.4) == ["MFU", "Step time", "Tokens/s per GPU"]
    assert labels(None) == ["Step time", "Tokens/s per GPU", "MFU"]
