"""The first screen: at most 24 lines of 80 columns; the verdict, what is next, the report's path."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest

from perfdoc.diagnose.account import account_of
from perfdoc.reports.ci import render_github
from perfdoc.reports.headline import headline
from perfdoc.reports.llm import render_llm
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.outlook import next_thing
from perfdoc.reports.savings import next_said
from perfdoc.reports.screen import LINES, render_brief, render_screen
from perfdoc.reports.text import render_text
from perfdoc.reports.view import time_view
from perfdoc.results import Diagnosis, Quality
from perfdoc.results.bubble import exposed_bubble_ns
from perfdoc.results.names import columns, opening, prose, shorten
from tests.reports import build, hostile, jobs
from tests.reports.build_choices import advice, gain, with_settings
from tests.reports.test_ranking import RANKED as MADE
from tests.reports.test_ranking import row

REPORT = "perfdoc-report/report.html"
MADE_BY_HAND = {
    **{name: partial(jobs.job, name) for name in jobs.NAMES},
    "one": build.one_rank,
    "thousand": lambda: build.many_ranks(1000),
    "none": lambda: build.diagnosis([]),
    "ranked": lambda: MADE,
}


def run_together(text: str) -> str:
    """Without breaks; nor the quotes of a command, which one that stands on a line of its own has not."""
    return "".join(text.split()).replace("`", "")


def assert_fits(made: Diagnosis, shown: str, width: int = 80) -> None:
    lines = shown.splitlines()
    assert shown.endswith("\n")
    assert len(lines) < LINES  # the last one is left to standard error
    assert [line for line in lines if columns(line) > width] == []
    assert not [c for c in shown if not c.isprintable() and c != "\n"]
    whole = run_together(shown)
    assert run_together(prose(made.verdict))[:60] in whole
    first, words = next_thing(made)
    assert run_together(prose(words, 400))[:60] in whole
    if first is not None:
        code = shorten(first.rules[0].code, 48) if first.rules else ""
        assert run_together(code + opening(first.title))[:30] in whole
    assert lines[-1] == f"Report: {REPORT}"


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", MADE_BY_HAND)
def test_it_fits_and_says_what_matters(name: str, width: int) -> None:
    made = MADE_BY_HAND[name]()
    assert_fits(made, render_screen(made, report=REPORT, width=width), width)


def test_it_is_never_wider_than_80_columns() -> None:
    made = MADE_BY_HAND["stages"]()
    assert render_screen(made, report=REPORT, width=200) == render_screen(made, report=REPORT, width=80)


@pytest.mark.parametrize("text", hostile.TEXTS, ids=range(len(hostile.TEXTS)))
def test_hostile_names_do_not_break_it(text: str) -> None:
    for name in ("exposed", "data"):
        made = hostile.hostile(text, name)
        shown = render_screen(made, report=REPORT)
        assert_fits(made, shown)
        coloured = render_screen(made, report=REPORT, colour=True)
        assert re.sub(r"\x1b\[[0-9;]+m", "", coloured) == shown
        assert "\x1b[" in coloured
        brief = render_brief(made, report=REPORT)
        assert brief.count("\n") == 1
        assert not [c for c in brief[:-1] if not c.isprintable()]


def test_the_bar_and_its_legend_by_hand() -> None:
    """78 cells for 80 columns: 58 or 59 of compute and the rest of exposed communication."""
    made = build.diagnosis([build.rank(0, build.ledger(compute=75, dp=25))])
    lines = render_screen(made, report=None).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("["))
    assert lines[at] in {"[C" + "=" * n + "DP" + "=" * (75 - n) + "]" for n in (57, 58, 59)}
    assert lines[at + 1] == "C compute 75.0 %   DP exposed comm DP 25.0 %"
    assert lines[-1].startswith("No report was written: give -o DIR.")


def test_small_leaves_are_pooled_and_the_shares_still_add_up_but_for_rounding() -> None:
    shown = render_screen(MADE_BY_HAND["thousand"](), report=REPORT)
    legend = shown[shown.index("\n[") : shown.index("MFU")]
    shares = [float(share) for share in re.findall(r"([\d.]+) %", legend)]
    (pooled,) = re.findall(r"(\d+) other leaves", legend)
    assert len(shares) - 1 + int(pooled) == 15
    assert len(shares) <= 9
    assert sum(shares) == pytest.approx(100.0, abs=0.05 * len(shares) + 1e-9)


def test_exposed_pp_that_is_bubble_is_called_bubble() -> None:
    """Of 200 ms of exposed PP on a rank transfer, handover and late peers take 150: 50 are surely bubble, of
    400 all 100 of it."""
    ms = 1_000_000
    made = build.diagnosis([build.rank(i, build.ledger(compute=800 * ms, pp=200 * ms)) for i in range(2)])
    measured = jobs.job("stages").analyses.pipeline
    times = {"bubble_ns": 100 * ms, "transfer_ns": 100 * ms, "handover_ns": 25 * ms, "late_peer_ns": 25 * ms}
    stages = [replace(row, rank=i, **times) for i, row in enumerate(measured.stages[:2])]
    pipeline = replace(measured, stages=stages)
    assert exposed_bubble_ns(pipeline, made.ranks) == 2 * 50 * ms
    more = [build.rank(i, build.ledger(compute=600 * ms, pp=400 * ms)) for i in range(2)]
    assert exposed_bubble_ns(pipeline, more) == 2 * 100 * ms
    assert exposed_bubble_ns(made.analyses.pipeline, made.ranks) == 0  # not measured
    made = replace(made, analyses=replace(made.analyses, pipeline=pipeline))
    shown = render_screen(made, report=REPORT)
    # 100 of 2,000 ms, and 300 that are not.
    assert "B pipeline bubble 5.0 %   PP exposed comm PP 15.0 %" in shown
    (exposed,) = [f for f in headline(made) if f.label == "Exposed communication"]
    assert exposed.notes[0] == "PP 15.0 %, pipeline bubble 5.0 %"
    drawn = time_view(made, None)
    rows = {row.label: (row.share, row.ns, row.low_ns) for row in drawn.rows}
    assert rows["pipeline bubble"] == ("5.0 %", 100 * ms, 50 * ms)
    assert rows["exposed comm PP"] == ("15.0 %", 300 * ms, 150 * ms)
    assert [s.title.split(",")[0] for s in drawn.overall.segments][1:] == [
        "pipeline bubble: 5.0 %",
        "exposed comm PP: 15.0 %",
    ]
    assert "20.0 % exposed communication (5.0 % pipeline bubble)" in account_of(made.ranks, pipeline=pipeline)


def test_a_thing_to_do_has_its_gain_and_the_setting_in_the_job_s_own_words() -> None:
    rows = [
        row("bound", ["PD501"], ms=100.0, blamed="compute"),
        row("predicted", ["PD202"], "without_gc", ms=2.0),
    ]
    shown = render_screen(with_settings(replace(MADE, opportunities=rows)), report=REPORT)
    first, second = shown[shown.index("Next: ") :].split(" 2. ")
    assert first.startswith("Next: PD501 ")
    assert "saves at most 100 ms a step, 64.7 % (upper bound, not predicted)." in " ".join(first.split())
    assert "Then (of the step, 154 ms; each alone):" in first
    assert second.startswith("PD202 ")
    # Of 2 ms that one rank saves, the ledger has 0.3 ms as idle.
    assert ": 2 ms, 1.3 % (300 µs idle + 1.7 ms launches that it delays)" in " ".join(second.split())
    assert "\n    set (Megatron-LM): --manual-gc true\n" in second


def test_every_setting_of_a_thing_to_do_has_a_line() -> None:
    """Pieces of one change: the first alone would be half of it. All of them, and nothing forbidden;
    what the first does not need is another way, and not shown."""
    pieces = [advice(f"knob_{i}", str(i), forbidden="no" if i == 1 else "") for i in range(5)]
    pieces[0] = replace(pieces[0], together=[f"knob_{i}" for i in range(1, 5)])
    pieces.insert(1, advice("another_way", "9"))
    made = replace(
        MADE,
        rules=[replace(r, advice=pieces) if r.code == "PD202" else r for r in MADE.rules],
        opportunities=[row("predicted", ["PD202"], "without_gc", ms=2.0, blamed="loss")],
    )
    shown = render_screen(with_settings(made), report=REPORT).splitlines()
    at = next(i for i, line in enumerate(shown) if "set (Megatron-LM)" in line)
    assert [line.split()[-2:] for line in shown[at : at + 4]] == [
        [f"--knob-{i}", str(i)] for i in (0, 2, 3, 4)
    ]


def test_the_main_setting_comes_before_what_it_needs() -> None:
    """Rules give prerequisites first, each refused or idle alone; a variable is named where it stands."""
    queues = replace(advice("queues", "32"), dialects={"env": "QUEUES=32"})
    main = replace(advice("chunks", "2"), together=["messages", "queues"])
    made = replace(
        MADE,
        rules=[
            replace(r, advice=[advice("messages", "on"), queues, main, advice("batch", "64")])
            if r.code == "PD202"
            else r
            for r in MADE.rules
        ],
        opportunities=[row("predicted", ["PD202"], "without_gc", ms=2.0, blamed="loss")],
    )
    shown = render_screen(with_settings(made), report=REPORT)
    assert (
        "\n      set (Megatron-LM): --chunks 2\n"
        "                         --messages on\n"
        "      set (environment): QUEUES=32\n"
    ) in shown
    assert "--batch" not in shown


def test_a_prediction_s_row_has_the_settings_of_that_prediction() -> None:
    """Those before it make another change, which has a row of its own, though no rule's best."""
    overlap = [replace(advice(f"overlap_{i}", "on"), gain=gain(9.0, key="norms_alone")) for i in (1, 2)]
    overlap = [replace(a, together=[f"overlap_{3 - i}"]) for i, a in enumerate(overlap, 1)]
    narrow = replace(advice("narrow", "on"), gain=gain(2.0, key="without_gc"))
    made = replace(
        MADE,
        rules=[replace(r, advice=[*overlap, narrow]) if r.code == "PD202" else r for r in MADE.rules],
        opportunities=[
            row("predicted", ["PD202"], "without_gc", ms=2.0, blamed="loss"),
            row("predicted", [], "norms_alone", ms=1.0),
        ],
    )
    shown = render_screen(with_settings(made), report=REPORT)
    first, second = shown[shown.index("Next") :].split(" 2. ")
    assert [line.split("): ")[-1].strip() for line in first.splitlines() if "--" in line] == ["--narrow on"]
    lines = [line.split("): ")[-1].strip() for line in second.splitlines() if "--overlap" in line]
    assert lines == ["--overlap-1 on", "--overlap-2 on"]


@pytest.mark.parametrize(("framework", "told"), [("megatron", True), ("pytorch", False)])
def test_what_was_simulated_is_a_setting_only_where_the_job_has_it(framework: str, told: bool) -> None:
    gains = MADE.analyses.gains
    known = [replace(p, settings={"manual_gc": True}) for p in gains.predictions]
    made = replace(
        MADE,
        opportunities=[row("predicted", [], "norms_alone", ms=5.0)],
        analyses=replace(MADE.analyses, gains=replace(gains, predictions=known)),
    )
    assert made.job is not None
    made = replace(made, job=replace(made.job, dialect=None, framework=framework))  # type: ignore[arg-type]
    assert ("manual_gc=True" in render_screen(with_settings(made), report=REPORT)) == told


def test_what_changes_the_figures_stands_before_other_notes_and_the_rest_is_counted() -> None:
    codes = ["open-ranges", "bad-ranges", "ignored-events", "graph-kernels", "config-contradicted"]
    notes = [Quality(code=c, message=f"about {c}", remedy="") for c in [*codes, "open-ranges"]]
    shown = render_screen(replace(build.two_ranks(), quality=notes), report=REPORT)
    said = shown[shown.index("! ") :].splitlines()
    assert said[:2] == ["! about config-contradicted", "! about open-ranges (1 more note like it)"]
    assert said[2].startswith("3 more notes; ")


def test_a_note_of_several_lines_is_said_and_one_that_no_lines_hold_is_counted() -> None:
    long = (
        "The file is not valid JSON, and was read after repair; " + "some names may differ " * 7 + "from it."
    )
    notes = [Quality(code=c, message=m, remedy="") for c, m in (("a", long), ("b", "word " * 90 + "end."))]
    shown = render_screen(replace(build.two_ranks(), quality=notes), report=REPORT)
    said = shown[shown.index("! ") :].splitlines()
    assert said[0].startswith("! The file is not valid JSON")
    assert "differ from it." in " ".join(line.strip() for line in said[:4])
    assert not any(line.strip() == "!" for line in said)
    assert "1 more note" in shown


def test_a_long_path_stays_whole() -> None:
    path = "/" + "d" * 200 + "/report.html"
    assert render_screen(build.one_rank(), report=path).splitlines()[-1] == f"Report: {path}"


def test_one_line_has_the_verdict_the_first_change_and_the_report() -> None:
    """What is captured before it is said as the screen says it."""
    first = replace(MADE.opportunities[0], blamed="loss")
    made = replace(MADE, opportunities=[first, *MADE.opportunities[1:]])
    line = render_brief(made, report=REPORT)
    assert line.startswith(MADE.verdict.removesuffix("."))
    assert "; next: Capture all 64 ranks " in line
    assert "First: capture all 64 ranks " in render_screen(made, report=REPORT)
    assert " PD501 " in line
    assert ": saves at most 100 ms a step, 64.7 %" in line
    assert line.endswith(f"; {REPORT}\n")


def test_a_problem_without_a_figure_says_what_it_is() -> None:
    """PD301 has no figure: its reason stands below its title, and no line says the title again."""
    rules = [
        replace(rule, reason="4 stages wait for one", remedy=f"{rule.action or rule.title}.")
        for rule in MADE.rules
    ]
    made = replace(MADE, rules=rules, opportunities=[row("unmeasured", ["PD301"], blamed="loss")])
    lines = [line.strip() for line in render_screen(made, report=REPORT).splitlines()]
    (said,) = [line for line in lines if line.startswith("Next: PD301")]
    assert said.endswith(": 4 stages wait for one.")
    assert not lines[lines.index(said) + 1].startswith("do: ")


def test_every_rendering_says_what_is_done_first() -> None:
    """A reader of an annotation or of the text for a model is sent nowhere else than the others."""
    first = replace(MADE.opportunities[0], blamed="loss")
    made = replace(MADE, opportunities=[first, *MADE.opportunities[1:]])
    row, said = next_said(made)
    assert row is not None
    assert said.startswith("Capture all 64 ranks ")
    for render in (render_github, render_llm, render_markdown, render_text):
        shown = " ".join(render(made).replace("%25", "%").replace("&#96;", "").split())
        for words in ("apture all 64 ranks (one file a rank", "saves at most 100 ms a step, 64.7 %"):
            assert words in shown, (render, words)
