"""`perfdoc analyze --baseline --target`: figures against an earlier diagnosis and targets."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.special import stdtrit

from perfdoc.compare.baseline import Baseline, against, parse_target, read_given, targets_of
from perfdoc.compare.side import Loaded
from perfdoc.knobs.configuration import Configuration
from perfdoc.reports.against import against_words
from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.text import render_text
from perfdoc.results import to_json
from perfdoc.results.headline import Against, AgainstFigure
from perfdoc.traces import TraceError
from tests.command import perfdoc
from tests.diff.sides import rank_of_steps, side, side_of
from tests.gate.commands import MS
from tests.reports import build
from tests.reports.build_choices import job as known_job
from tests.simulator.hand_laid import write_hand_laid

BEFORE = [100 * MS, 102 * MS, 98 * MS, 100 * MS]


def only(found: Against | None, name: str) -> AgainstFigure:
    assert found is not None
    assert found.state == "compared", found.reason
    (figure,) = [f for f in found.figures if f.figure == name]
    return figure


def test_steps_of_an_earlier_diagnosis_are_compared_by_their_scatter() -> None:
    # Means 100 and 110 ms; both spread by the same 1.63 ms, so there are 6 degrees of freedom and the
    # interval reaches t(0.995, 6) x 1.63 x sqrt(2/4) on either side.
    before = side([rank_of_steps(0, BEFORE)])
    after = side([rank_of_steps(0, [ns + 10 * MS for ns in BEFORE])])
    found = against(after, Baseline(name="old", side=before), ())
    step = only(found, "step_time")
    assert (step.before, step.now, step.change_frac) == (100 * MS, 110 * MS, pytest.approx(0.1))
    reach = stdtrit(6, 0.995) * statistics.stdev(BEFORE) * (2 / 4) ** 0.5
    assert step.noise_frac == pytest.approx(reach / (100 * MS), abs=1e-8)
    assert (step.within_noise, step.better) == (False, False)
    close = side([rank_of_steps(0, [ns + MS for ns in BEFORE])])
    step = only(against(close, Baseline(name="old", side=before), ()), "step_time")
    assert (step.within_noise, step.better) == (True, False)


def test_other_hardware_is_not_comparable_and_says_so() -> None:
    one = rank_of_steps(0, BEFORE)
    other = replace(one, gpu=replace(one.gpu, name="NVIDIA Other"))
    known = replace(one, gpu=replace(one.gpu, name="NVIDIA One"))
    now = side([other])
    found = against(now, Baseline(name="old", side=side([known])), ())
    assert found is not None
    assert (found.state, found.figures) == ("incomparable", [])
    shown = replace(now.diagnosis, against=found)
    (said,) = against_words(shown)
    assert said == (
        "Not comparable with the baseline `old`: one ran on NVIDIA One, the other on NVIDIA Other."
    )
    for text in (render_text(shown, width=400), render_markdown(shown), render_html(shown)):
        assert "NVIDIA Other" in text
        assert "Not comparable with the baseline" in text


def worked(flops: float, tokens: int, step_ns: int, sequence: int = 128) -> Loaded:
    """A side that knows what its steps do."""
    made = side([rank_of_steps(0, [step_ns, step_ns])]).diagnosis
    job = replace(
        known_job(),
        sequence_length=sequence,
        tokens_per_step=tokens,
        tokens_per_s_per_gpu=min(tokens, 10**9) * 1e9 / step_ns,
    )
    mfu = replace(made.mfu, value=0.4, flops_per_step=flops, convention="one")
    return side_of(replace(made, job=job, mfu=mfu))


def test_a_diagnosis_of_another_model_is_not_comparable_though_no_shape_is_known() -> None:
    # 1,000 tokens of 6 GFLOP each, against 1,000 of 9: no shape crosses into a diagnosis, this does.
    before, now = worked(6e12, 1000, 100 * MS), worked(9e12, 1000, 100 * MS)
    found = against(now, Baseline(name="old", side=before), ())
    assert found is not None
    assert (found.state, found.figures) == ("incomparable", [])
    assert found.reason == "the models differ: 6 GFLOP per token in the baseline, 9 GFLOP here"
    # Of longer sequences a token takes more in the same model.
    longer = against(worked(9e12, 1000, 100 * MS, 256), Baseline(name="old", side=before), ())
    assert longer is not None
    assert longer.state == "compared"


def test_steps_of_another_batch_are_not_held_against_one_another() -> None:
    # Twice the tokens in 1.9 times the time: the step is no 90 % worse, and tokens per second are 5 % better.
    before, now = worked(6e12, 1000, 100 * MS), worked(12e12, 2000, 190 * MS)
    found = against(now, Baseline(name="old", side=before), ())
    assert found is not None
    assert [f.figure for f in found.figures] == ["mfu", "tokens_per_s_per_gpu"]
    assert only(found, "tokens_per_s_per_gpu").change_frac == pytest.approx(2 / 1.9 - 1)
    assert (
        found.notes[0]
        == "a step has 1,000 tokens there and 2,000 here, so the times of steps are not compared"
    )
    same = against(worked(6e12, 1000, 190 * MS), Baseline(name="old", side=before), ())
    assert only(same, "step_time").change_frac == pytest.approx(0.9)


def test_settings_that_differ_are_named() -> None:
    before = side([rank_of_steps(0, BEFORE)], configuration=Configuration(values={"micro_batch_size": 2}))
    after = side([rank_of_steps(0, BEFORE)], configuration=Configuration(values={"micro_batch_size": 4}))
    found = against(after, Baseline(name="old", side=before), ())
    assert found is not None
    assert [(d.fact, d.before, d.now) for d in found.differences] == [("micro_batch_size", "2", "4")]
    assert only(found, "step_time").better is None
    said = " ".join(against_words(replace(after.diagnosis, against=found)))
    assert "Differences: micro_batch_size (2, here 4)." in said


def test_targets_are_met_missed_or_not_known() -> None:
    made = build.one_rank()
    step = sorted(s.duration_ns for r in made.ranks for s in r.window.step_list)
    middle = step[(len(step) - 1) // 2] / 1e6
    floors = [parse_target(f"step_time_ms={middle + 1:.3f}"), parse_target(f"step_time_ms={middle - 1:.3f}")]
    met, missed = targets_of(made, floors)
    assert (met.state, missed.state) == ("met", "missed")
    assert met.value == pytest.approx(middle)
    unknown = replace(made, mfu=replace(made.mfu, value=None))
    (target,) = targets_of(unknown, [parse_target("mfu=0.45")])
    assert (target.state, target.value, target.at_least) == ("unknown", None, True)


@pytest.mark.parametrize(
    "text",
    [
        "mfu",
        "mfu=",
        "mfu=45",
        "mfu=x",
        "mfu=0.45:off",
        "mfu=0.45:warn",
        "exposed_comm_frac_max=0.1",
        "speed=1",
    ],
)
def test_a_target_that_is_none_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--target ") as caught:
        parse_target(text)
    assert "\n" not in str(caught.value)
    assert "mfu_min" not in str(caught.value), "a name of the gate's"


def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path) -> None:
    (odd := tmp_path / "odd.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (broken := tmp_path / "broken").mkdir()
    (broken / "diagnosis.json").write_text('{"schema_version": "1.3", "perfdoc_version": "0", "verdict": "')
    for path in (odd, tmp_path / "empty", tmp_path / "nothing", broken):
        with pytest.raises(TraceError) as caught:
            read_given(path)
        assert "\n" not in str(caught.value)
        assert "remove" not in str(caught.value), "it may be a capture"


def test_the_command_shows_the_baseline_in_the_strip(tmp_path: Path) -> None:
    demo = write_hand_laid(tmp_path / "demo")[0]
    assert perfdoc("analyze", demo, "-o", tmp_path / "old", "--no-replay").returncode == 0
    done = perfdoc(
        *("analyze", demo, "-o", tmp_path / "new", "--no-replay"),
        *("--baseline", tmp_path / "old", "--target", "mfu=0.45"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "new" / "diagnosis.json").read_text())["against"]
    assert (found["state"], found["baseline"]) == ("compared", "old")
    assert "Both sides are the same captures." in done.stdout
    assert "the same as in the baseline" in (tmp_path / "new" / "report.html").read_text()
    bad = perfdoc("analyze", demo, "-o", tmp_path / "bad", "--baseline", tmp_path / "nothing")
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "bad").exists()


def test_the_older_report_of_a_run_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "run" / "report").mkdir(parents=True)
    (tmp_path / "run" / "report" / "diagnosis.json").write_bytes(to_json(build.one_rank()))
    given = read_given(tmp_path / "run")
    assert given.name == "run"
