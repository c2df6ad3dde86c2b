"""What to do: actions, gains, confidence, effort, and sets that can be chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.reports.headline import headline
from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.opportunities import choices, confidence, dialects_of, opportunities
from perfdoc.reports.outlook import outlook
from perfdoc.reports.settings import snippets
from perfdoc.reports.text import render_text
from perfdoc.results import Gain, Related
from tests.reports import build
from tests.reports.build_choices import ceiling, gain, with_choices
from tests.reports.page import Page

MADE = with_choices(build.one_rank())
PAGE = Page(render_html(MADE))


def test_opportunities_come_by_gain_each_with_an_action() -> None:
    found = [(o.code, o.action, o.gain, o.band, o.share) for o in opportunities(MADE)]
    assert found == [
        ("PD203", "Prepare batches in processes of their own.", "10 ms", "5 ms to 15 ms", "6.5 %"),
        ("PD202", "Set `manual_gc` to `true`.", "2 ms", "1.8 ms to 2.2 ms", "1.3 %"),
        ("PD501", "Set `expandable_segments`.", "≤ 5 ms", "", "3.2 %"),
        ("PD301", "Investigate: A long bubble", "—", "", ""),
    ]
    assert [o.effort for o in opportunities(MADE)] == [
        *("no setting", "1 setting", "no setting", "no setting")
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
    assert confidence(found) == word


def test_a_forbidden_setting_is_named_and_never_offered_to_paste() -> None:
    (gc,) = [o for o in opportunities(MADE) if o.code == "PD202"]
    assert gc.rule is not None
    allowed, forbidden = gc.rule.advice
    assert [text for spelled in snippets(allowed) for _, text in spelled.lines] == [
        *("--manual-gc true", "export X_MANUAL_GC=true", "manual_gc=true")
    ]
    assert (forbidden.forbidden, snippets(forbidden)) == ("tp is 1", [])
    assert dialects_of(opportunities(MADE)) == [
        *(("megatron_lm", "Megatron-LM"), ("env", "environment"), ("perfdoc", "perfdoc run"))
    ]
    assert "other-knob" not in PAGE.text
    assert "Do not set: other_knob: false → 4" in PAGE.text


def test_every_set_is_on_the_page_with_the_gain_that_was_simulated() -> None:
    found = choices(MADE)
    assert found is not None
    assert found.changes == [("without gc", "2 ms"), ("without data", "10 ms"), ("norms alone", "1 ms")]
    # 2 + 10 + 1 less 0.5 for each change beyond the first.
    assert {s.members: s.gain for s in found.sets} == {
        **{"0": "2 ms", "1": "10 ms", "2": "1 ms"},
        **{"0,1": "11.5 ms", "0,2": "2.5 ms", "1,2": "10.5 ms", "0,1,2": "12 ms"},
    }
    rows = [e for e in PAGE.within("sets", "tr") if "data-set" in e.attributes]
    assert [(r.attributes["data-set"], r.attributes["data-gain"], r.children[1].text) for r in rows] == [
        (s.members, s.gain, s.gain) for s in found.sets
    ]
    boxes = [(e.attributes["value"], e.inside[-1]) for e in PAGE.elements if e.tag == "input"]
    assert boxes == [
        *(("1", "PD203"), ("0", "PD202"), ("0", "choose"), ("1", "choose"), ("2", "choose")),
    ]
    assert "Sets were simulated for the 3 changes that gain most, out of 5." in PAGE.text


def test_a_gain_that_is_no_prediction_has_nothing_to_choose() -> None:
    scaled = [
        replace(r, gain=replace(r.gain, key="")) if r.gain is not None and r.code == "PD203" else r
        for r in MADE.rules
    ]
    assert [o.choice for o in opportunities(replace(MADE, rules=scaled))] == [None, 0, None, None]
    assert choices(build.one_rank()) is None
    assert not [e for e in Page(render_html(build.one_rank())).elements if e.tag == "input"]


def test_the_manager_s_sentence_is_in_every_rendering() -> None:
    # 12 of 154.480 ms
    said = (
        "3 changes together (without data, without gc, norms alone): "
        "\N{MINUS SIGN}12 ms per step (10.8 ms to 13.2 ms)"
    )
    assert outlook(MADE).endswith(". " + said + ", 7.8 % of the step, predicted.")
    assert said in PAGE.text.replace("\xa0", " ")
    assert said in " ".join(render_text(MADE).split())
    assert said in render_markdown(MADE)
    assert outlook(build.one_rank()) == ""


def test_one_change_is_named_and_there_is_nothing_to_choose() -> None:
    assert MADE.combined is not None
    one = replace(MADE.combined, accepted=["without_gc"], gain=gain(2.0), sets=MADE.combined.sets[:1])
    made = replace(MADE, combined=one)
    # What leads the ranking, though it is not the one that is promised together with others.
    assert outlook(made) == (
        "Without data (PD203): \N{MINUS SIGN}10 ms per step (5 ms to 15 ms), 6.5 % of the step, predicted."
    )
    assert choices(made) is None
    assert [o.choice for o in opportunities(made)] == [None] * 4


def test_where_nothing_gains_the_sentence_says_so() -> None:
    assert MADE.combined is not None
    none = replace(MADE.combined, accepted=[], gain=None, sets=[])
    made = replace(
        MADE, combined=none, rules=[], opportunities=[]
    )  # findings with a figure speak for themselves
    assert "No predicted gain: of 3 simulated changes, none" in outlook(made)
    gains = MADE.analyses.gains
    replayed = [p for p in gains.predictions if p.gain.method == "replay"]
    analyses = replace(MADE.analyses, gains=replace(gains, predictions=replayed[:1]))
    assert "No predicted gain: the one simulated change" in outlook(replace(made, analyses=analyses))


def test_a_change_that_costs_time_says_so() -> None:
    assert MADE.combined is not None
    assert MADE.combined.gain is not None
    slower = replace(MADE.combined.gain, low_ms=-3.0, mid_ms=-2.0, high_ms=-1.0)
    rules = [replace(MADE.rules[0], gain=slower)]
    (found,) = opportunities(replace(MADE, rules=rules))
    assert (found.gain, found.band, found.confidence) == ("costs 2 ms", "1 ms to 3 ms", "low")
    said = outlook(replace(MADE, combined=replace(MADE.combined, gain=slower)))
    assert "3 changes" in said
    assert said.endswith("they gain nothing.")


def test_information_is_apart_from_problems_and_folded() -> None:
    folded = PAGE.by_id("information")
    assert folded.tag == "details"
    assert "PD902" in folded.text
    assert "PD902" not in [o.code for o in opportunities(MADE)]
    assert "4 things to do" in PAGE.text


def test_codes_that_are_no_ids_get_numbers() -> None:
    rules = [replace(r, code=code) for r, code in zip(MADE.rules, ["PD1", "PD1", 'x" y'], strict=False)]
    anchors = [o.anchor for o in opportunities(replace(MADE, rules=rules))]
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


def test_a_set_whose_settings_exclude_one_another_is_not_offered() -> None:
    """Of seven sets of three changes two hold both."""
    made = with_choices(build.one_rank())
    whole = choices(made)
    assert whole is not None
    assert len(whole.sets) == 7
    assert "go together" not in outlook(made)
    apart = {"PD202": "PD203", "PD203": "PD202"}
    rules = [
        replace(r, related=[Related(code=apart[r.code], how="not_together", why="why")])
        if r.code in apart
        else r
        for r in made.rules
    ]
    found = choices(replace(made, rules=rules))
    assert found is not None
    assert [s.members for s in found.sets] == ["0", "1", "2", "0,2", "1,2"]
    assert found.reason.endswith("exclude each other: PD202 with PD203")
    said = outlook(replace(made, rules=rules))
    assert said.endswith("settings exclude each other (PD202 with PD203).")
