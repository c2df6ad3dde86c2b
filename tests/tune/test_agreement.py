"""analyze, tune and verify of the same job: of one change the same settings and the same gain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfdoc.compare.verify.advised import advised
from perfdoc.knobs.configuration import Configuration
from perfdoc.results.diagnosis import from_json
from tests.command import perfdoc

JOBS = {
    "two stages": ("simulate", "llama3-8b", "--layout", "pp=2,micro_batches=4,seq=1024", "--steps", "2"),
    "late stage": (
        *("simulate", "llama3-8b", "--layout", "pp=4,micro_batches=8,seq=1024", "--steps", "2"),
        *("--fault", "uneven_stages"),
    ),
    "demo": ("demo",),
}


def _ran(folder: Path, *words: str) -> str:
    done = perfdoc(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_one_change_has_one_gain(tmp_path: Path, job: str) -> None:
    _ran(tmp_path, *JOBS[job], "-o", "job")
    asked = ("job/traces", "--config", "job/job.yaml", "--json", "-")
    analysed = _ran(tmp_path, "analyze", *asked)
    diagnosis = from_json(analysed.encode())
    tuned: dict[str, Any] = json.loads(_ran(tmp_path, "tune", *asked, "--gpu-memory", "1000"))
    rows = {
        tuple(sorted((c["knob"], str(c["after"]).lower()) for c in row["changes"])): row
        for row in tuned["rows"]
        if row["changes"]
    }
    compared = agreed = 0
    for row in diagnosis.opportunities:
        if row.kind != "predicted" or row.gain is None or not row.settings or not row.codes:
            continue
        # What verify would change, and what it holds the measurement against.
        own = [s.knob for s in row.settings]
        made = advised(diagnosis, [row.codes[0]], own, Configuration(values={}, dialect="perfdoc"))
        assert {k: str(v).lower() for k, v in made.changes.items()} == {
            s.knob: s.value.lower() for s in row.settings
        }
        assert made.predicted.mid_ms == pytest.approx(row.gain.mid_ms)
        compared += 1
        # tune names what must be changed beside it too.
        same = [
            r for knobs, r in rows.items() if {(s.knob, s.value.lower()) for s in row.settings} == set(knobs)
        ]
        for found in same:
            agreed += 1
            assert found["gain_ms"]["mid"] == pytest.approx(row.gain.mid_ms, rel=0.01)
    assert compared
    assert agreed or job != "two stages"  # of the others tune searches nothing that is advised
