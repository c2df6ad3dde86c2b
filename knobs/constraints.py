"""The rules that tie settings together: rows of catalogue/constraints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, get_args

from perfdoc.knobs.condition import Term, Test, compiled, settings_of
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.load import frozen, table
from perfdoc.knobs.terms import TERMS
from perfdoc.records import dataclass

Kind = Literal["forbidden", "ineffective", "inadvisable"]
"""`forbidden`: refused at start-up, or silently wrong. `ineffective`: changes nothing. `inadvisable`: works,
and costs something."""
_KINDS: tuple[Kind, ...] = get_args(Kind)
_FILES = (
    *("parallel", "stage_layout", "data_parallel", "experts", "memory", "kernels", "environment", "trainer"),
    "megatron_lm",
    *("reinforcement", "plain_pytorch"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Constraint:
    """A condition on a configuration, with its words; there is one of each."""

    name: str
    """Stable, for people who look it up or leave it out."""
    subject: str
    """The knob that is to blame."""
    kind: Kind
    broken: Test
    """True where the rule is broken. Raises Undecided where a setting that it needs is unknown."""
    rule: str
    """The rule in words."""
    fix: tuple[tuple[str, Value], ...] = ()
    """Settings that mend it; empty where that is the user's to decide."""
    needs_companion: bool = False
    """The subject is useless without another setting that is off by default, so that it is worth a note even
    where a recipe may have set it."""
    gpu_decides: bool = False
    """Whether it holds follows from the GPU, of which no file tells: a note, not an error."""
    severity: Literal["", "warning", "note"] = ""
    """Where the kind says another: what a framework itself only warns of, or only later versions need."""
    along: bool = False
    """Whoever advises the subject advises the mending with it, whatever was set before."""
    until: tuple[tuple[Dialect, str], ...] = ()
    """The last version of a framework that was seen to have it; perhaps all of one that is not there."""
    dialects: tuple[Dialect, ...] = ()
    """Where it holds; everywhere if empty."""
    knobs: frozenset[str]
    """Ids of every knob and fact that it may read, and of those that mend it."""


@cache
def constraints() -> tuple[Constraint, ...]:
    """Every rule, in the order in which they are shown. Raises ValueError for a row that is wrong."""
    rows = [row for name in _FILES for row in table(f"constraints/{name}")]
    terms = {**TERMS, **{row["term"]: Term(is_=row["is"]) for row in rows if "term" in row}}
    return tuple(_constraint(one, terms) for row in rows if "term" not in row for one in _filled(row))


def _filled(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The row for each setting of its `each`, in place of `{it}`; `{its}` is what that one is mapped to."""
    each = row.get("each")
    if each is None:
        yield row
        return
    for it in each:
        its = str(each[it]) if isinstance(each, Mapping) else ""

        def fill(part: Any, it: str = it, its: str = its) -> Any:
            if isinstance(part, dict):
                return {fill(key): fill(value) for key, value in part.items()}
            return part.replace("{it}", it).replace("{its}", its) if isinstance(part, str) else part

        name = row["name"].replace("{it}", it.replace("_", "-"))
        yield {**fill({k: v for k, v in row.items() if k != "each"}), "name": name}


def _constraint(row: Mapping[str, Any], terms: Mapping[str, Term]) -> Constraint:
    try:
        kind = next(kind for kind in _KINDS if kind in row)
        fix = tuple((name, frozen(value)) for name, value in row.get("fix", {}).items())
        return Constraint(
            name=row["name"],
            subject=row[kind],
            kind=kind,
            broken=compiled(row["if"], terms),
            rule=row["rule"],
            fix=fix,
            needs_companion=row.get("needs_companion", False),
            gpu_decides=row.get("gpu_decides", False),
            severity=row.get("severity", ""),
            along=row.get("along", False),
            until=tuple(row.get("until", {}).items()),
            dialects=tuple(row.get("dialects", ())),
            knobs=settings_of(row["if"], terms) | {row[kind], *(name for name, _ in fix)},
        )
    except (KeyError, StopIteration, ValueError) as error:
        raise ValueError(f"constraint {row.get('name')}: {error}") from error
