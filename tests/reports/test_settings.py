"""Every report prints the same complete setting of a thing to do: the main one, with what it requires."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.values import Opaque, read_value
from perfdoc.knobs.writing import as_written
from perfdoc.reports.html import render_html
from perfdoc.reports.llm import findings_of, render_llm
from perfdoc.reports.ranking import ranking
from perfdoc.reports.screen import render_screen
from perfdoc.reports.settings import setting_lines, spellings
from perfdoc.results import to_json
from tests.reports.page import Page
from tests.rules.examples import examples


@pytest.mark.parametrize(
    ("code", "settings"),
    [("PD101", 2), ("PD111", 1), ("PD202", 2), ("PD301", 2), ("PD342", 2), ("PD343", 2), ("PD401", 2)],
)
def test_every_report_prints_the_same_complete_setting(tmp_path: Path, code: str, settings: int) -> None:
    case = examples()[code].case(tmp_path)
    configuration = replace(case.configuration, dialect="megatron_lm")
    made = diagnose(list(case.captures), configuration=configuration)
    place, ranked = next((at, r) for at, r in enumerate(ranking(made)) if code in r.row.codes)
    assert len(ranked.row.settings) == settings
    first = spellings(ranked.row.settings, made)[0]
    texts = [text for _, text in first.lines]
    assert len(texts) == settings
    # What tune writes for the same changes.
    values = [read_value(catalogue()[s.knob], s.value) for s in ranked.row.settings]
    written = [
        as_written(s.knob, value, configuration.dialect)
        for s, value in zip(ranked.row.settings, values, strict=True)
        if not isinstance(value, Opaque)
    ]
    assert texts == written
    row = json.loads(to_json(made))["opportunities"][place]
    assert [s["dialects"].get(first.dialect, s["dialects"].get("env")) for s in row["settings"]] == texts
    finding = list(findings_of(made))[place]
    assert finding["set"][first.title] == texts
    assert [line.partition("): ")[2] or line.strip() for line in setting_lines(ranked, made, 400)] == texts
    alone = replace(made, opportunities=[made.opportunities[place]])
    screen = render_screen(alone, report="x")
    assert [text for text in texts if text not in screen] == []
    assert ", ".join(f'"{text}"' for text in texts) in render_llm(made)
    pastes = [e.text for e in Page(render_html(made)).elements if "paste" in e.attributes.get("class", "")]
    assert "\n".join(texts) in pastes
