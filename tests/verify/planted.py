"""Run directories and diagnoses whose figures are planted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.compare.verify.record import ChangedSetting, Measured, Predicted, Record, RulePrediction
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.knobs.configuration import Configuration
from perfdoc.profiling.logs import StepRecord
from perfdoc.profiling.manifest import ConfigValue
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.step_log import StepLog
from perfdoc.results import Advice, Diagnosis, Gain, RuleResult, to_json
from perfdoc.trainer.config.resolve import resolve
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.gate.manifests import tiny_manifest
from tests.rules.cases import step_with_gap

MS = 1_000_000
WORKERS = "dataloader_num_workers"


def replayed(low: float, mid: float, high: float) -> Gain:
    """A gain in milliseconds a step, by replay."""
    return Gain(low_ms=low, mid_ms=mid, high_ms=high, method="replay", assumptions=["planted"])


def fires(code: str, *advice: Advice, gain: Gain | None = None, remedy: str = "") -> RuleResult:
    """A rule that fires."""
    return RuleResult(
        code=code,
        title=f"Title of {code}",
        state="fires",
        reason="planted",
        evidence=[],
        remedy=remedy,
        advice=list(advice),
        gain=gain,
    )


def setting(
    knob: str,
    to: str,
    *,
    now: str | None = None,
    forbidden: str = "",
    gain: Gain | None = None,
    together: Sequence[str] = (),
) -> Advice:
    """One piece of advice."""
    return Advice(
        knob=knob,
        from_value=now,
        to_value=to,
        why="why",
        costs="",
        dialects={},
        forbidden=forbidden,
        gain=gain,
        together=list(together),
    )


def diagnosis_of(folder: Path, *rules: RuleResult) -> Diagnosis:
    """A real diagnosis, of steps of 1 ms of which 0.3 ms wait for data, with planted rules in place of its
    own; its own where none is given."""
    folder.mkdir(parents=True, exist_ok=True)
    path = write_nsys_sqlite(step_with_gap(300, "perfdoc.data").build(), folder / "trace.sqlite", force=True)
    own = Configuration(values={WORKERS: 0}, dialect="perfdoc")
    found = diagnose([measure_capture(path, WindowRequest())], configuration=own)
    return replace(found, rules=list(rules)) if rules else found


def run_directory(
    folder: Path,
    step_ms: float,
    *overrides: str,
    rules: Sequence[RuleResult] = (),
    nodes: int = 1,
    utc: str = "2026-11-21T00:00:00Z",
    fifth_ms: float = 0.0,
) -> Path:
    """A run of `tiny` with some settings: 30 steps of about `step_ms`, every fifth so much longer, and a
    report of these rules."""
    run = RunDirectory.create(folder)
    manifest = tiny_manifest(bucket_size=1, created_utc=utc)
    rows = resolve("tiny", overrides).rows()
    config = {key.partition(".")[2]: ConfigValue(value=v, origin="file tiny") for key, v, _ in rows}
    hardware = msgspec.structs.replace(manifest.hardware, nodes=nodes)
    run.write_manifest(msgspec.structs.replace(manifest, config=config, hardware=hardware))
    run.end(status="finished", reason="")
    for rank in (0, 1):
        log = StepLog(run.steps_path(rank))
        for i in range(30):
            takes_ms = step_ms * (1 + 0.01 * ((i % 3) - 1)) + (fifth_ms if i % 5 == 4 else 0.0)
            log.write(
                StepRecord(step=i, start_ns=i, duration_ns=round(takes_ms * MS), tokens=9, profiled=False)
            )
        log.close()
    if rules:
        (folder / "report").mkdir()
        found = diagnosis_of(folder.parent / f"{folder.name}-made-of", *rules)
        (folder / "report" / "diagnosis.json").write_bytes(to_json(found))
    return folder


def record(verdict: str = "confirmed", code: str = "PD203", *, utc: str = "2026-11-21T00:00:00Z") -> Record:
    """A record of 10 ms predicted and 9 ms measured."""
    predicted = Predicted(method="replay", low_ms=8.0, mid_ms=10.0, high_ms=12.0)
    return Record(
        kind="rerun",
        utc=utc,
        perfdoc_version="0.1.0",
        source="run",
        diagnosis_sha256="0" * 64,
        rules=[RulePrediction(code=code, title="T", predicted=predicted)],
        settings=[ChangedSetting(knob=WORKERS, before="0", after="2")],
        predicted=predicted,
        measured=Measured(
            method="pairs of runs",
            statistic="median",
            before_ms=100.0,
            gain_ms=9.0,
            low_ms=8.5,
            high_ms=9.5,
            confidence=0.95,
            samples=3,
        ),
        verdict=verdict,  # type: ignore[arg-type]
        reason="planted",
        complete=True,
        facts={"device": "cpu"},
        fingerprint="0" * 12,
    )
