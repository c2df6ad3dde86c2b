"""An example of each rule as it fires on planted data, for the rules' pages.

@example("PD101")
def exposed_reduction(folder: Path) -> Case:
    '''What was planted, in words: the page shows this docstring.'''

may be in any module of tests/rules. `python -m tests.rules.examples docs/rules/examples.json` (a part of
`make docs`) runs them all and writes what the rules say; test_pages.py holds the file fresh.
"""

import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perfdoc.reports.advice import gain_words, setting_words
from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.case import Case
from tests.rules.cases import result

Planting = Callable[[Path], Case]
ROOM = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Example:
    """One planted case."""

    code: str
    planted: str
    """In words."""
    case: Planting
    presupposes: tuple[str, ...] = ()
    """What its advice needs of a job, so that `perfdoc run` can run it: tests/verify/test_advised.py does."""


_EXAMPLES: dict[str, Example] = {}


def example(*codes: str, presupposes: tuple[str, ...] = ()) -> Callable[[Planting], Planting]:
    """Register a case on which these rules fire; one example a rule."""

    def register(case: Planting) -> Planting:
        for code in codes:
            known = _EXAMPLES.setdefault(
                code,
                Example(
                    code=code,
                    planted=" ".join((case.__doc__ or "").split()),
                    case=case,
                    presupposes=presupposes,
                ),
            )
            assert known.case.__qualname__ == case.__qualname__, f"two examples of {code}"
        return case

    return register


@cache
def examples() -> Mapping[str, Example]:
    """Code → its example, of all modules of this folder that hold any."""
    for file in sorted(ROOM.glob("*.py")):
        if file.name != "examples.py" and "\n@example(" in file.read_text(encoding="utf-8"):
            importlib.import_module(f"tests.rules.{file.stem}")
    # Run as a program this module is another one than the one that examples import.
    return importlib.import_module("tests.rules.examples")._EXAMPLES


def run(one: Example, folder: Path) -> RuleResult:
    """What the rule says of its example."""
    return result(one.code, one.case(folder))


def recorded(one: Example, found: RuleResult) -> dict[str, Any]:
    """What the page shows of it."""
    return {
        "planted": one.planted,
        "level": found.level,
        "reason": found.reason,
        "evidence": [[e.label, e.value] for e in found.evidence],
        "gain": gain_words(found.gain, found.gain_per),
        "advice": [
            {"change": change, "why": why} for piece in found.advice for change, why in [setting_words(piece)]
        ],
        "remedy": found.remedy,
        "verify": found.verify,
        "false_alarm": found.false_alarm,
    }


def all_recorded() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every example, run."""
    for code, one in sorted(examples().items()):
        with tempfile.TemporaryDirectory() as folder:
            yield code, recorded(one, run(one, Path(folder)))


def as_text(found: Mapping[str, Any]) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(as_text(dict(all_recorded())), encoding="utf-8")
