"""`perfdoc verify` and `perfdoc explain` in processes of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from perfdoc.cli.application import app
from perfdoc.compare.verify.record import Record, read_record, records_folder
from perfdoc.profiling.manifest import encode
from perfdoc.results import to_json
from tests.command import perfdoc
from tests.verify.planted import WORKERS, diagnosis_of, fires, record, replayed, run_directory, setting

ADVICE = fires("PD203", setting(WORKERS, "2", now="0"), gain=replayed(8, 10, 12))


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERFDOC_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def verify(folder: Path, *arguments: str | Path) -> tuple[int, str, str]:
    done = perfdoc("verify", *arguments, cwd=folder)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


REFUSED: list[tuple[list[str], str]] = [
    (["run"], "--apply PD203"),
    (["run", "--apply", "PD203", "--repeats", "2"], "--repeats 2: give 3 to 50"),
    (["run", "--apply", "PD203", "--steps", "3"], "--steps 3"),
    (["run", "--apply", "PD999"], "there is no rule PD999"),
    (["run", "--apply", "PD202"], "PD202 did not fire (passes: calm)"),
    (["run", "--apply", "PD303"], "advises no setting here"),
    (["run", "--apply", "PD101"], "is forbidden here: the other one"),
    (["run", "--apply", "PD203", "-o", "run"], "is there already"),
    (["run", "--apply", "PD203", "--rule", "PD203"], "go with AFTER"),
    (["run", "copy", "--apply", "PD203"], "leave AFTER out"),
    (["nowhere", "--apply", "PD203"], "is no run directory"),
    ([".", "--apply", "PD203"], "is no run directory"),
    (["emptied", "--apply", "PD203"], "holds no configuration"),
    (["run", "run", "--rule", "PD203"], "is the same as BEFORE"),
    (["run", "copy"], "no setting is known to differ"),
    (["run", "bucket"], "no rule of BEFORE advised what differs (bucket_size)"),
]


def test_refusals_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [
        ADVICE,
        replace(fires("PD202"), state="passes", reason="calm"),
        fires("PD303", remedy="Look at rank 3."),
        fires("PD101", setting("overlap_grad_reduce", "true", forbidden="the other one")),
    ]
    run_directory(tmp_path / "run", 100, rules=rules)
    run_directory(tmp_path / "copy", 90)
    run_directory(tmp_path / "bucket", 90, "bucket_size=1000")
    emptied = run_directory(tmp_path / "emptied", 100, rules=[ADVICE]) / "run.json"
    emptied.write_text(json.dumps({**json.loads(emptied.read_text()), "config": {}}))
    monkeypatch.chdir(tmp_path)
    for arguments, words in REFUSED:  # in this process, for there are many; the first one in its own as well
        done = CliRunner().invoke(app, ["verify", *arguments])
        assert (done.exit_code, done.stdout) == (2, ""), arguments
        assert words in done.stderr, arguments
        assert len(done.stderr.strip().splitlines()) == 1, arguments
    code, out, err = verify(tmp_path, *REFUSED[0][0])
    assert (code, out, REFUSED[0][1] in err) == (2, "", True)
    assert not (tmp_path / "verify").exists()
    assert not (tmp_path / "state").exists()


def test_two_runs_that_differ_by_what_a_rule_advised(tmp_path: Path, own_state: Path) -> None:
    # 100 ms before, 90 after, 8 to 12 predicted: 10 ms less, surely more than 5 % of a step.
    before = run_directory(tmp_path / "before", 100, rules=[ADVICE])
    # No steady step feels another learning rate.
    after = run_directory(tmp_path / "after", 90, f"{WORKERS}=2", "lr=1e-5", utc="2026-11-22T00:00:00Z")
    code, out, err = verify(tmp_path, before, after, "-o", "out")
    assert code == 0, err
    assert "PD203 on before: confirmed" in out
    found = read_record(tmp_path / "out" / "verify.json")
    assert found.measured is not None
    assert (found.measured.gain_ms, found.measured.low_ms, found.measured.high_ms) == (10, 5, 15)
    assert [(s.knob, s.before, s.after) for s in found.settings] == [(WORKERS, "0", "2")]
    assert found.other_differences == []
    assert (found.rules[0].predicted.mid_ms, found.kind) == (10, "two runs")
    (kept,) = own_state.rglob("*.json")
    assert read_record(kept) == found
    again, _, said = verify(tmp_path, before, after, "-o", "out")
    assert (again, "is there already" in said) == (2, True)
    assert verify(tmp_path, before, after, "-o", "out", "--force")[0] == 0


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "bucket_size=4000",
            "bucket_size differs as well and may be the cause; by the times alone: confirmed",
        ),
        ("global_batch_size=8", "a step does other work (global_batch_size)"),
    ],
)
def test_what_else_differs_may_be_the_cause(tmp_path: Path, override: str, words: str) -> None:
    before = run_directory(tmp_path / "before", 100, rules=[ADVICE])
    after = run_directory(tmp_path / "after", 90, f"{WORKERS}=2", override)
    done = CliRunner().invoke(app, ["verify", str(before), str(after), "--format", "json"])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["verdict"]) == (3, "inconclusive")
    assert words in found["reason"]


def test_what_only_some_steps_do_is_seen_by_the_mean(tmp_path: Path) -> None:
    """A collection of 60 ms in every fifth step is 12 of 112 ms, and nothing of the median step. Of diagnoses
    nothing but the median is known: that there is no effect cannot be said by it."""
    rarer = fires("PD202", setting("manual_gc_interval", "100", now="5"), gain=replayed(10.0, 12.0, 14.0))
    before = run_directory(tmp_path / "a", 100, "manual_gc_interval=5", rules=[rarer], fifth_ms=60)
    after = run_directory(tmp_path / "b", 100, "manual_gc_interval=100")
    done = CliRunner().invoke(app, ["verify", str(before), str(after), "--format", "json"])
    found = json.loads(done.stdout)
    assert (found["verdict"], found["measured"]["statistic"]) == ("confirmed", "mean")
    assert found["measured"]["gain_ms"] == pytest.approx(12, abs=0.2)
    paths = [tmp_path / f"{name}.json" for name in ("c", "d")]
    for path in paths:
        path.write_bytes(to_json(diagnosis_of(tmp_path / path.stem, rarer)))
    done = CliRunner().invoke(app, ["verify", *map(str, paths), "--rule", "PD202", "--format", "json"])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["verdict"]) == (3, "inconclusive")
    assert "which median steps do not show: give two run directories" in found["reason"]


def test_another_machine_may_be_the_cause(tmp_path: Path) -> None:
    before = run_directory(tmp_path / "before", 100, rules=[ADVICE])
    after = run_directory(tmp_path / "after", 90, f"{WORKERS}=2")
    manifest = json.loads((after / "run.json").read_text())
    manifest["versions"]["torch"] = "2.99"
    (after / "run.json").write_text(json.dumps(manifest))
    done = CliRunner().invoke(app, ["verify", str(before), str(after), "--format", "json"])
    assert json.loads(done.stdout)["verdict"] == "inconclusive"
    assert "versions.torch" in json.loads(done.stdout)["reason"]


@pytest.mark.parametrize(
    ("after_ms", "verdict", "exit_code"), [(60, "larger", 0), (120, "opposite", 0), (97, "inconclusive", 3)]
)
def test_verdicts_of_two_runs(tmp_path: Path, after_ms: float, verdict: str, exit_code: int) -> None:
    before = run_directory(tmp_path / "before", 100, rules=[ADVICE])
    after = run_directory(tmp_path / "after", after_ms, f"{WORKERS}=2")
    done = CliRunner().invoke(app, ["verify", str(before), str(after), "--format", "json"])
    assert (done.exit_code, json.loads(done.stdout)["verdict"]) == (exit_code, verdict)


def test_a_diagnosis_that_somebody_else_wrote_is_not_trusted(tmp_path: Path, own_state: Path) -> None:
    # A code that is a path, with characters that a terminal obeys; then figures that cannot be.
    evil = fires("../../../evil\x1b[2J", setting(WORKERS, "2"), gain=replayed(8, 10, 12))
    before = run_directory(tmp_path / "before", 100, rules=[evil])
    after = run_directory(tmp_path / "after", 90, f"{WORKERS}=2")
    done = CliRunner().invoke(app, ["verify", str(before), str(after)])
    assert (done.exit_code, "\x1b" in done.output) == (0, False)
    (kept,) = own_state.rglob("*.json")
    assert kept.parent == own_state / "verify"
    impossible = fires("PD203", setting(WORKERS, "2"), gain=replayed(8, 1e300, 1e301))
    other = run_directory(tmp_path / "other", 100, rules=[impossible])
    refused = CliRunner().invoke(app, ["verify", str(other), str(after)])
    assert (refused.exit_code, "impossible figures" in refused.stderr) == (2, True)


def unmoved(utc: str) -> Record:
    """8 to 12 ms predicted, -1 to 1 measured."""
    found = record("no effect", utc=utc)
    assert found.measured is not None
    gain = msgspec.structs.replace(found.measured, gain_ms=0.0, low_ms=-1.0, high_ms=1.0)
    return msgspec.structs.replace(found, measured=gain)


def test_a_rules_track_record(tmp_path: Path, own_state: Path) -> None:
    explained = perfdoc("explain", "PD203", cwd=tmp_path)
    assert "Track record: none yet" in explained.stdout
    own_state.joinpath("verify").mkdir(parents=True)
    (own_state / "verify" / "a.json").write_bytes(encode(record()))
    (own_state / "verify" / "of-another-rule.json").write_bytes(encode(record(code="PD101")))
    (own_state / "verify" / "torn.json").write_text('{"schema_version": 1')
    given = tmp_path / "given" / "one"
    given.mkdir(parents=True)
    (given / "verify.json").write_bytes(encode(unmoved(utc="2026-11-22T00:00:00Z")))
    (given / "copy.json").write_bytes(encode(record()))  # counts once
    text = perfdoc("explain", "pd203", "--records", tmp_path / "given", cwd=tmp_path).stdout
    assert "Track record: 1 confirmed, 1 no effect" in text
    assert text.index("2026-11-21 confirmed") < text.index("2026-11-22 no effect")
    done = perfdoc("explain", "PD203", "--format", "json", cwd=tmp_path)
    assert [r["verdict"] for r in json.loads(done.stdout)["track_record"]] == ["confirmed"]
    refused = perfdoc("explain", "PD203", "--records", tmp_path / "nowhere", cwd=tmp_path)
    assert (refused.returncode, "holds no record" in refused.stderr) == (2, True)


def test_a_configuration_that_cannot_run_is_refused_before_any_run(tmp_path: Path) -> None:
    """A group of four tensor ranks, of two ranks that there are."""
    pytest.importorskip("torch")  # without which no configuration runs
    rule = fires("PD314", setting("tensor_model_parallel_size", "4", now="1"))
    run_directory(tmp_path / "run", 100, rules=[rule])
    words = ["verify", str(tmp_path / "run"), "--apply", "PD314", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, "after.yaml would not run" in done.stderr) == (2, True), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_where_records_are_kept() -> None:
    assert records_folder({"PERFDOC_STATE": "/s", "XDG_STATE_HOME": "/x"}) == Path("/s/verify")
    assert records_folder({"XDG_STATE_HOME": "/x"}) == Path("/x/perfdoc/verify")
    by_default = Path.home() / ".local" / "state" / "perfdoc" / "verify"
    assert records_folder({}) == records_folder({"XDG_STATE_HOME": "relative"}) == by_default
