"""Rows, what each change adds; and the renderings of them."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import jsonschema
import pytest

from perfdoc.knobs.configuration import Configuration
from perfdoc.results.type_schema import json_bytes
from perfdoc.tune.ranking import parts_of, tuning_of, verdict_of
from perfdoc.tune.result import Band, Tuning, json_schema, to_take
from perfdoc.tune.run import axes_for
from perfdoc.tune.search import search
from perfdoc.tune.space import GATHER
from perfdoc.tune.words import first_screen, render_html, render_text, written_of
from tests.tune.hand_job import job

GIB = 2**30


def tuned(top: int = 10) -> Tuning:
    one = job(memory_bytes=80 * GIB)
    axes = axes_for(one, [], {})
    return tuning_of(one, axes, search(one, axes), top=top, inputs=["rank0.sqlite"])


def test_what_is_on_and_not_shown_is_not_searched() -> None:
    """The capture shows no early gather: it is to be tried, unless the configuration has it on."""
    tried = []
    for known in ({}, {GATHER: True}):
        one = job(**known)
        made = one.models.model
        sharded = replace(made, settings=replace(made.settings, sharded_optimizer=True))
        one = replace(one, models=replace(one.models, model=sharded))
        tried.append(axes_for(one, [], {}).values["overlap_gather"])
    assert tried == [[False, True], [False]]


def test_rows_rise_and_begin_with_the_unchanged_job() -> None:
    found = tuned()
    assert [r.place for r in found.rows] == list(range(len(found.rows)))
    now, best = found.rows[0], found.rows[1]
    assert now.changes == []
    assert now.step_ms.mid == pytest.approx(found.step_ms)
    steps = [r.step_ms.mid for r in found.rows[1:]]
    assert steps == sorted(steps)
    assert best.gain_ms.mid == pytest.approx(now.step_ms.mid - best.step_ms.mid)
    assert all(r.step_ms.low <= r.step_ms.mid <= r.step_ms.high for r in found.rows)
    assert all(r.within_error == (r.gain_ms.low <= 0 <= r.gain_ms.high) for r in found.rows)
    # 8 sequences of 2,048 tokens in 2.72 ms on 4 GPUs.
    assert best.tokens_per_s_per_gpu == pytest.approx(8 * 2048 / 2.72e-3 / 4)


def test_settings_are_written_as_the_job_writes_them() -> None:
    best = tuned().rows[1]
    written = {c.knob: c.written for c in best.changes}
    assert written == {
        "pipeline_model_parallel_size": "--pipeline-model-parallel-size 1",
        "data_parallel_size": "",  # Megatron-LM derives it
    }


def test_parts_sum_to_the_whole_gain() -> None:
    one = job()
    for tried in search(one, axes_for(one, [], {})).tried:
        whole = (one.models.model.measured_ns - tried.step_ns) / 1e6
        assert sum(p.gain_ms for p in parts_of(one, tried.point)) == pytest.approx(whole, abs=1e-9)


def test_a_change_that_brings_nothing_beside_others_is_no_row() -> None:
    # With one stage, a micro-batch twice as large takes as long: its row would say nothing new.
    rows = tuned(top=50).rows
    assert [r.settings.micro_batch_size for r in rows if r.settings.pp == 1] == [1]


def test_json_keeps_its_schema() -> None:
    jsonschema.validate(json.loads(json_bytes(tuned())), json_schema())


def test_the_text_holds_the_figures() -> None:
    found = tuned()
    text = render_text(found)
    assert found.verdict.split(" with ")[0] in " ".join(text.split())
    assert "--pipeline-model-parallel-size 1" in text
    for row in found.rows[1:]:
        assert f"{row.step_ms.mid:.4g} ms" in text


@pytest.mark.parametrize("top", [1, 50])
def test_the_first_screen_fits_and_can_be_pasted(top: int) -> None:
    found = tuned(top)
    lines = first_screen(found, ["runs/rank0.sqlite"], width=80).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    best = to_take(found.rows)
    assert best is not None
    stripped = [line.strip() for line in lines]
    for written in written_of(best):
        assert written in stripped  # alone on its line
    assert any(line.startswith("Why: ") for line in lines)
    assert any(line.startswith("Next: ") for line in lines)
    assert "perfdoc diff runs/rank0.sqlite AFTER" in stripped


@pytest.mark.parametrize(
    ("paths", "side"),
    [
        (["de mo/traces/rank0.sqlite"], "de mo/traces/rank0.sqlite"),
        (["traces/*.sqlite"], "traces/*.sqlite"),  # a pattern that diff reads, not the shell
        (["it's/$HOME"], "it's/$HOME"),
        (["a", "b"], "BEFORE"),
        (["a" * 60], "BEFORE"),  # no line of 80 columns holds it
        (["a\x1b[2J"], "BEFORE"),
        ([], "BEFORE"),
    ],
)
def test_the_command_reads_what_was_given(paths: list[str], side: str) -> None:
    """A shell splits the line into the path that tune was given, or a word to fill in."""
    lines = first_screen(tuned(), paths, width=80).splitlines()
    command = next(line for line in lines if "perfdoc diff" in line)
    assert shlex.split(command) == ["perfdoc", "diff", side, "AFTER"]
    assert len(command) <= 80


def test_what_may_lose_is_not_what_to_set() -> None:
    """The first row's band reaches from 5 ms lost to 9 ms won, the second's holds no loss."""
    now, first, second, *_ = tuned().rows
    unsure = replace(first, gain_ms=Band(low=-5.0, mid=2.0, high=9.0), within_error=True)
    sure = replace(second, gain_ms=Band(low=0.5, mid=1.0, high=1.5), within_error=False)
    assert to_take([now, unsure, sure]) is sure
    assert to_take([now, unsure]) is unsure
    assert to_take([now]) is None
    best = replace(tuned(), rows=[now, sure])
    assert f"Next: set for #{sure.place} " in first_screen(best)
    assert f"To set for #{sure.place}" in render_text(best)
    best = replace(best, rows=[now, unsure])
    assert f"Next: try #{unsure.place} " in first_screen(best)
    assert f"To try #{unsure.place}" in render_text(best)
    assert "#1 may bring more" in verdict_of([now, unsure, sure])
    assert "#1" not in verdict_of([now, unsure])


def test_what_the_configuration_has_on_is_not_promised() -> None:
    """The capture shows no overlap of gradients, the configuration asks for it: there is nothing to set."""
    one = job()
    values = {"tensor_model_parallel_size": 1, "overlap_grad_reduce": True, "overlap_param_gather": True}
    on = replace(one, configuration=Configuration(values=values))
    axes = axes_for(on, [], {})
    assert len(axes.values["tp"]) > 1
    assert axes.values["overlap_reduce"] == [on.base.overlap_reduce]
    assert axes.values["overlap_gather"] == [on.base.overlap_gather]
    rows = tuning_of(on, axes, search(on, axes), top=50, inputs=[]).rows
    shown = [tuple((c.knob, str(c.after)) for c in r.changes) for r in rows]
    assert len(set(shown)) == len(shown)  # no two rows that a reader cannot tell apart


def test_nothing_better_is_said() -> None:
    one = job()
    axes = axes_for(one, ["recompute_granularity"], {})
    found = tuning_of(one, axes, search(one, axes), top=3, inputs=[])
    assert found.verdict.startswith("Nothing that was tried beats")
    assert "To set" not in render_text(found)
    assert "Next: keep it" in first_screen(found)


def test_hostile_names_are_escaped() -> None:
    page = render_html(replace(tuned(), inputs=["<script>alert(1)</script>"], notes=["<img src=x>"]))
    assert "<script>alert" not in page
    assert "<img src=x>" not in page
