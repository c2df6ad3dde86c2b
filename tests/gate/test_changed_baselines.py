"""Baselines that somebody changed by hand: one line each, and no verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfdoc.compare.baseline_files import MAX_RUNS, Baseline, encode, read_baselines
from perfdoc.compare.facts import fingerprint
from perfdoc.compare.figures import RunFigures, digest_of
from perfdoc.traces import TraceError
from tests.gate.commands import MakeRun, gate, record

Change = Callable[[dict[str, Any]], object]


def steady_of(ns: int) -> dict[str, int]:
    """The figures of steps that all take so long."""
    names = ("median_step_ns", "mean_step_ns", "whole_mean_step_ns")
    return dict.fromkeys(names, ns)


def run(number: int, **known: Any) -> RunFigures:
    figures = {**steady_of(10**8 + number), "mad_step_ns": 0, "steps": 9, "warmup_steps": 0, **known}
    return RunFigures(source=f"r{number}", digest=digest_of([number], [1], None), **figures)


def write(path: Path, runs: int = 3) -> Path:
    facts = {"device": "cpu", "config.x": 1}
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        encode(Baseline(fingerprint=fingerprint(facts), facts=facts, runs=[run(i) for i in range(runs)]))
    )
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "b" / "a.json", MAX_RUNS)
    assert [r.source for r in read_baselines(tmp_path / "b")[path].runs][-1] == f"r{MAX_RUNS - 1}"
    assert read_baselines(tmp_path / "none") == {}


def of_run(**values: object) -> Change:
    return lambda baseline: baseline["runs"][0].update(values)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b.update(facts={"device": "cuda"}), "fingerprint"),
        (lambda b: b.update(fingerprint="0" * 12), "fingerprint"),
        (lambda b: b["facts"].update({"config.x": 10**30}), "fingerprint"),
        (lambda b: b["runs"].append(b["runs"][0]), "holds one run twice, as r0 and r0"),
        (lambda b: b["runs"].append(b["runs"][0] | {"source": "copy"}), "twice, as r0 and copy"),
        (lambda b: b.update(runs=b["runs"] * 800), "is no baseline"),
        (lambda b: b.update(runs=[]), "is no baseline"),
        (of_run(median_step_ns=0), "is no baseline"),
        (of_run(mad_step_ns=-1), "is no baseline"),
        (of_run(parts_ns={"compute": -5}), "is no baseline"),
        (of_run(peak_memory_bytes=-1), "is no baseline"),
        (of_run(exposed_comm_frac=2), "is no baseline"),
        (of_run(digest="no"), "is no baseline"),
    ],
)
def test_impossible_contents_are_refused(tmp_path: Path, change: Change, said: str) -> None:
    path = write(tmp_path / "b" / "a.json")
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(TraceError, match=said) as caught:
        read_baselines(path.parent)
    assert "\n" not in str(caught.value)


def test_two_files_of_equal_facts_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "b" / "a.json")
    write(tmp_path / "b" / "c.json")
    with pytest.raises(TraceError, match=r"c\.json: has the same facts as a\.json"):
        read_baselines(tmp_path / "b")


def test_the_command_says_it_in_one_line(tmp_path: Path, make_run: MakeRun) -> None:
    baseline = record(tmp_path, make_run)
    content = json.loads(baseline.read_text())
    content["runs"][0]["parts_ns"]["compute"] = 10**400
    baseline.write_text(json.dumps(content))
    code, out, err = gate(tmp_path, "check", make_run("new", 100))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is no baseline" in err
