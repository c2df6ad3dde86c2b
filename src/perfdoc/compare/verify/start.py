"""What a verification starts from: a run or a diagnosis, and the two configurations that are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from perfdoc import results as d
from perfdoc.compare.stored import REPORT, is_diagnosis, read_diagnosis
from perfdoc.compare.verify.record import ChangedSetting, VerifyError
from perfdoc.knobs.knob import Value
from perfdoc.knobs.values import as_text
from perfdoc.profiling.manifest import Manifest
from perfdoc.records import dataclass
from perfdoc.traces import TraceError
from perfdoc.trainer.config.resolve import KEYS
from perfdoc.trainer.config.schema import Config


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """A diagnosis and its serial form's digest."""

    diagnosis: d.Diagnosis
    sha256: str
    analysed_now: bytes | None
    """The serial form, where it was not there before."""


def diagnosed(path: Path) -> Diagnosed:
    """A diagnosis.json, or that of a run directory's report; of a run or trace without one it is made now.

    Raises TraceError and UserError.
    """
    report = path / REPORT
    if is_diagnosis(path) or (path.is_dir() and report.is_file()):
        result, content = read_diagnosis(path if is_diagnosis(path) else report)
        return Diagnosed(diagnosis=result, sha256=hashlib.sha256(content).hexdigest(), analysed_now=None)
    from perfdoc.diagnose.asked import parse_request
    from perfdoc.diagnose.measuring import analysed
    from perfdoc.diagnose.workers import WorkerLostError

    try:
        result = analysed(parse_request([str(path)])).diagnosis
    except WorkerLostError as error:
        raise TraceError(path, f"was not analysed: {error}", "Try again.") from error
    serial = d.to_json(result)
    return Diagnosed(diagnosis=result, sha256=hashlib.sha256(serial).hexdigest(), analysed_now=serial)


MAX_RANKS = 256
"""Processes that are started on this machine, at most."""
_DEGREES = frozenset({"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"})


@dataclass(frozen=True, kw_only=True)
class Arms:
    """Both sides, as YAML files of the trainer's own section and key names."""

    before: str
    after: str
    settings: list[ChangedSetting]
    """What tells them apart."""
    world_size: int


def arms_of(manifest: Manifest, changes: Mapping[str, Value], *, steps: int) -> Arms:
    """Both configurations of so many steps. Raises VerifyError where the trainer has no such setting.

    Neither evaluates, saves or resumes. The number of ranks stays: where a parallel degree changes, data
    parallelism takes what is left.
    """
    if manifest.hardware.nodes > 1:
        raise VerifyError(
            f"the run was of {manifest.hardware.nodes} machines, and verify starts runs on this one. Run "
            "both by hand, then: perfdoc verify BEFORE AFTER"
        )
    if not 1 <= manifest.layout.world_size <= MAX_RANKS:
        raise VerifyError(f"run.json names {manifest.layout.world_size} ranks: verify starts {MAX_RANKS}.")
    own = {name: setting.value for name, setting in manifest.config.items()}
    if not own:
        raise VerifyError("run.json of the run holds no configuration: there is nothing to run again.")
    if foreign := sorted(set(own) - set(KEYS)):
        raise VerifyError(f"{foreign[0]}: this version of the trainer has no such setting. Run again first.")
    if unknown := sorted(set(changes) - set(KEYS)):
        raise VerifyError(
            f"{unknown[0]}: is not a setting of perfdoc's trainer, which cannot try it. Leave it out "
            "with --knob, or change your own job and: perfdoc verify BEFORE AFTER"
        )
    warmup = own.get("lr_warmup_iters")
    shortened = own | {
        "train_iters": steps,
        "log_interval": steps,
        "eval_interval": None,
        "lr_warmup_iters": min(warmup, steps // 2) if isinstance(warmup, int) else warmup,
        "lr_decay_iters": None,
        **{"save": None, "save_interval": None, "load": None, "load_step": None, "load_weights_only": False},
    }
    changed = shortened | {k: list(v) if isinstance(v, tuple) else v for k, v in changes.items()}
    if _DEGREES & set(changes) and "data_parallel_size" not in changes:
        changed["data_parallel_size"] = None
    settings = [
        ChangedSetting(knob=name, before=as_text(shortened.get(name)), after=as_text(changed[name]))
        for name in changed
        if changed[name] != shortened.get(name)
    ]
    if not settings:
        raise VerifyError(f"{', '.join(changes)}: the run has these settings already.")
    return Arms(
        before=_yaml(shortened),
        after=_yaml(changed),
        settings=settings,
        world_size=manifest.layout.world_size,
    )


def _yaml(values: Mapping[str, Any]) -> str:
    """`section: {key: value}`, in the order of the trainer's own schema."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in msgspec.to_builtins(Config())}
    for name, value in values.items():
        sections[KEYS[name]][name] = value
    filled = {section: body for section, body in sections.items() if body}
    return yaml.safe_dump(filled, sort_keys=False, default_flow_style=False)
