"""Run directories of planted step times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfdoc.profiling.logs import StepRecord
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.step_log import StepLog
from tests.gate.commands import MS, MakeRun
from tests.gate.manifests import tiny_manifest


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRun:
    """Makes a run directory of 20 steps: two slow ones, then `step_ms` with a wobble of 1 %, two profiled."""
    for name in ("GITHUB_SHA", "CI_COMMIT_SHA", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)

    def make(
        name: str,
        step_ms: float,
        *,
        bucket_size: int = 1000,
        parts: dict[str, float] | None = None,
        status: str = "finished",
        steps: int = 20,
        utc: str | None = None,
        data_ms: float | None = None,
    ) -> Path:
        run = RunDirectory.create(tmp_path / name)
        run.write_manifest(
            tiny_manifest(bucket_size=bucket_size, created_utc=utc or f"2026-11-21T00:00:00Z {name}")
        )
        if status == "finished":
            run.end(status="finished", reason="")
        for rank in (0, 1):
            log = StepLog(run.steps_path(rank))
            for i in range(steps):
                wobble = 1 + 0.01 * ((i % 3) - 1)
                ms = step_ms * 5 if i < 2 else step_ms * 3 if i in (10, 11) else step_ms * wobble
                log.write(
                    StepRecord(
                        step=i,
                        start_ns=i,
                        duration_ns=round(ms * MS),
                        tokens=9,
                        data_ns=None if data_ms is None else round(data_ms * MS),
                        profiled=i in (10, 11),
                    )
                )
            log.close()
        if parts:
            leaves = {k: round(v * MS) * 2 for k, v in parts.items() if "." not in k}
            exposed = {k.split(".")[1]: round(v * MS) * 2 for k, v in parts.items() if "." in k}
            rank_row = {
                "window": {"kind": "steps", "steps": 2},
                "ledger_ns": leaves | {"exposed_comm": exposed},
            }
            (run.path / "report").mkdir()
            (run.path / "report" / "diagnosis.json").write_text(json.dumps({"ranks": [rank_row]}))
        return run.path

    return make
