"""The two configurations that are compared: the run's own, cut short, and the changed one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from perfdoc.knobs.knob import Value
from perfdoc.profiling.manifest import Manifest
from perfdoc.trainer.config.resolve import KEYS
from perfdoc.trainer.config.schema import Config
from perfdoc.verify.errors import VerifyError
from perfdoc.verify.record import ChangedSetting

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
        raise VerifyError(
            f"run.json speaks of {manifest.layout.world_size} ranks: verify starts {MAX_RANKS}."
        )
    own = {name: setting.value for name, setting in manifest.config.items()}
    if not own:
        raise VerifyError("run.json of the run holds no configuration: there is nothing to run again.")
    if foreign := sorted(set(own) - set(KEYS)):
        raise VerifyError(f"{foreign[0]}: this version of the trainer has no such setting. Run again first.")
    if unknown := sorted(set(changes) - set(KEYS)):
        raise VerifyError(
            f"{unknown[0]}: is no setting of perfdoc's trainer, so it cannot be tried with it. Leave it out "
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


def as_text(value: Any) -> str:
    """A setting as the report writes it.

    >>> as_text(True), as_text(None), as_text([1, 2])
    ('true', 'null', '1,2')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(as_text(v) for v in value)
    return "null" if value is None else str(value)


def _yaml(values: Mapping[str, Any]) -> str:
    """`section: {key: value}`, in the order of the trainer's own schema."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in msgspec.to_builtins(Config())}
    for name, value in values.items():
        sections[KEYS[name]][name] = value
    filled = {section: body for section, body in sections.items() if body}
    return yaml.safe_dump(filled, sort_keys=False, default_flow_style=False)
