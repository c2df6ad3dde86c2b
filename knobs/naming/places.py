"""Where each dialect keeps its settings (catalogue/places.yaml): containers, classes, roles, in one form."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from perfdoc.knobs.knob import Dialect
from perfdoc.knobs.load import table
from perfdoc.knobs.naming.nearest import slips
from perfdoc.patterns import pattern_of

PLACES = SimpleNamespace(**table("places"))
_VERL_MODEL = "actor_rollout_ref.model."
STEM = pattern_of(
    r"(?:(?:cfg|config|recipe|self|pretrain|finetune|job_config)\.)+|(?!model|optim|train|ddp|dist|data)[a-z]\w{0,4}\."
    r"(?=(?:trainer|model|optim|train|ddp|optimizer|dist|comm_overlap|mixed_precision|profiling|dataset)\.)"
)
"""What stands before a path in a program, and nowhere else: also the name of any short variable."""


def placed(dialect: Dialect, name: str) -> tuple[str, str, str]:
    """A written path as (path in the dialect's own form, scope, wrong class or ""). The scope is a role of
    verl; settings of different roles do not belong together."""
    parts = name.split(".")
    wrong = next((p for p in parts[:-1] if p in PLACES.wrong_classes), "")
    if wrong:
        parts = [PLACES.wrong_classes[p] if p == wrong else p for p in parts]
    for position in range(len(parts) - 2, -1, -1):
        part, rest = parts[position], parts[position + 1 :]
        if part in PLACES.callables or (dialect == "megatron_core" and part in PLACES.core_classes):
            return ".".join([part, *rest]), "", wrong
        classes = PLACES.classes.get(dialect, {})
        if part in classes:
            return _within(classes[part], rest), "", wrong
    path = ".".join(parts)
    stem = STEM.match(path)
    path = path[stem.end() :] if stem else path
    if dialect == "verl":
        return *_of_verl(path), wrong
    if dialect == "perfdoc" and path.partition(".")[0] in PLACES.perfdoc_sections:
        path = path.rpartition(".")[2]
    return path, "", wrong


def _within(section: str, rest: Sequence[str]) -> str:
    """A path in a section; of those that end in the beginning of their names, also without it."""
    place, _, prefix = section.partition(".") if section.endswith("_") else (section, "", "")
    key = ".".join(rest)
    has_it = not prefix or slips(key.partition("_")[0], prefix.partition("_")[0], 1) <= 1
    return f"{place}.{'' if has_it else prefix}{key}".removeprefix(".")


def _of_verl(path: str) -> tuple[str, str]:
    """Every role's settings as the actor's, with the role that they hold for."""
    if path.startswith(_VERL_MODEL):
        return path, "actor_rollout_ref"
    for role in PLACES.verl_roles:
        if not path.startswith(role):
            continue
        rest = path.removeprefix(role)
        if rest.startswith("log_prob_"):  # of the reference alone
            return path, role.rstrip(".")
        if rest.startswith("model.") and not rest.startswith("model.fsdp_config."):
            return _VERL_MODEL + rest.removeprefix("model."), role.rstrip(".")
        return PLACES.verl_roles[0] + rest.removeprefix("model."), role.rstrip(".")
    return path, ""
