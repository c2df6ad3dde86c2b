"""analyze, tune and verify of the same job: of one change the same settings and the same gain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfdoc.compare.verify.advised import advised
from perfdoc.knobs.configuration import Configuration
from perfdoc.results.diagnosis import from_json
from perfdoc.tune.space import FIRST, LAST, VPP
from tests.command import perfdoc

JOBS = {
    # Two stages of a GPU that is full by the formula: neither offers what needs more memory.
    "two stages": ("simulate", "llama3-8b", "--layout", "pp=2,micro_batches=4,seq=1024", "--steps", "2"),
    "room": (
        *("simulate", "llama3-8b", "--layout", "pp=2,tp=4,micro_batches=4,seq=1024", "--steps", "2"),
        *("--gpu", "h200"),
    ),
    "late stage": (
        *("simulate", "llama3-8b", "--layout", "pp=4,micro_batches=8,seq=1024", "--steps", "2"),
        *("--fault", "uneven_stages"),
    ),
    "late stage, room": (
        *("simulate", "llama3-8b", "--layout", "pp=4,tp=2,micro_batches=8,seq=1024", "--steps", "2"),
        *("--fault", "uneven_stages"),
    ),
    "demo": ("demo",),
}
SEARCHED = {FIRST, LAST, VPP}
"""What both predict by the model of the job, each by itself."""
WITH = {"overlap_p2p_comm", "batch_p2p_comm"}
"""What goes with it."""
ADVISED = {
    "two stages": set(),
    "room": {VPP, FIRST},
    "late stage": {VPP, FIRST},
    "late stage, room": {VPP, FIRST},
    "demo": set(),
}
"""Of it, what analyze advises."""


def _ran(folder: Path, *words: str) -> str:
    done = perfdoc(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _alone(changes: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """A change by its own settings, without what goes with it; empty where it is of something else too."""
    own = {knob: value for knob, value in changes.items() if knob not in WITH}
    return frozenset(own.items()) if own.keys() <= SEARCHED else frozenset()


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_one_change_has_one_gain(tmp_path: Path, job: str) -> None:
    _ran(tmp_path, *JOBS[job], "-o", "job")
    asked = ("job/traces", "--config", "job/job.yaml", "--json", "-")
    analysed = _ran(tmp_path, "analyze", *asked)
    diagnosis = from_json(analysed.encode())
    only = ("--only", "first,last,vpp", "--top", "200")
    tuned: dict[str, Any] = json.loads(_ran(tmp_path, "tune", *asked, *only))
    best = {
        _alone({c["knob"]: str(c["after"]).lower() for c in row["changes"]}): row["gain_ms"]["mid"]
        for row in reversed(tuned["rows"])
        if row["changes"]
    }
    compared, advised_here = 0, set()
    for row in diagnosis.opportunities:
        if row.kind != "predicted" or row.gain is None or not row.settings or not row.codes:
            continue
        # What verify would change, and what it holds the measurement against.
        own = [s.knob for s in row.settings]
        made = advised(diagnosis, [row.codes[0]], own, Configuration(values={}, dialect="perfdoc"))
        settings = {s.knob: s.value.lower() for s in row.settings}
        assert {k: str(v).lower() for k, v in made.changes.items()} == settings
        assert made.predicted.mid_ms == pytest.approx(row.gain.mid_ms)
        compared += 1
        if alone := _alone(settings):
            # tune offers it too, with the same gain, and knows no better value of it.
            assert best[alone] == pytest.approx(row.gain.mid_ms, rel=0.01)
            like = [gain for knobs, gain in best.items() if dict(knobs).keys() == dict(alone).keys()]
            assert max(like) == best[alone]
            advised_here |= {knob for knob, _ in alone}
    assert advised_here & {VPP, FIRST} == ADVISED[job]
    assert compared or not ADVISED[job]
    # And the other way round: what tune offers of these by itself, analyze advises.
    worth_ms = 0.03 * tuned["rows"][0]["step_ms"]["mid"]
    for knobs, gain in best.items():
        searched = {knob for knob, _ in knobs} & {VPP, FIRST}
        if len(searched) == 1 and gain > worth_ms:
            assert searched <= advised_here
