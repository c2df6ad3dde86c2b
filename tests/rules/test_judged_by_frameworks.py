"""What rules advise, judged by DeepSpeed, Accelerate, torchtitan and verl themselves.

PERFDOC_JUDGES names an interpreter that has them (`pip install --no-deps` of each and what its configuration
imports, in an environment of its own); without it all of this is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.knobs.knob import Dialect
from perfdoc.knobs.settings import read_configuration
from tests.rules import framework_judges
from tests.rules.examples import examples
from tests.rules.set_lines import file_of, jobs, lines_of, printed, with_lines
from tests.rules.test_advice_everywhere import advice_for, chosen, example_case, framework

pytestmark = pytest.mark.slow
INTERPRETER = os.environ.get("PERFDOC_JUDGES", "")
JUDGED: tuple[Dialect, ...] = ("deepspeed", "accelerate", "torchtitan", "verl")


def advised(dialect: Dialect, job: str, folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """(rule, set lines, the job's lines with them) of all that the rules advise in a job."""
    settings = jobs(dialect)[job]
    lines = lines_of(settings, dialect)
    text, name = file_of(lines, dialect)
    file = folder / f"{dialect} {job} {name}"
    file.write_text(text)
    configuration = replace(read_configuration(file, dialect), complete=True)
    yield "the job", [], lines
    for code in sorted(examples()):
        own = example_case(code, folder / code) if not (folder / code).exists() else _KEPT[code]
        _KEPT[code] = own
        captures = [replace(one, framework=framework(dialect, settings)) for one in own.captures]
        case = replace(own, captures=captures, configuration=configuration, as_given=None)
        for pieces in chosen(advice_for(code, case, own)):
            new = [line for piece in pieces if (line := printed(piece, dialect))]
            if new:
                yield code, new, with_lines(lines, new)


_KEPT: dict[str, framework_judges.Any] = {}


@pytest.mark.parametrize("dialect", JUDGED)
def test_a_framework_takes_what_is_advised(
    dialect: Dialect, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not INTERPRETER:
        pytest.skip("PERFDOC_JUDGES names no interpreter that has the frameworks")
    _KEPT.clear()
    rows = [(job, *row) for job in jobs(dialect) for row in advised(dialect, job, tmp_path)]
    asked = [{"dialect": dialect, "text": file_of(lines, dialect)[0], "lines": lines} for *_, lines in rows]
    script = Path(framework_judges.__file__)
    ran = subprocess.run(
        [INTERPRETER, str(script)], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    verdicts = json.loads(ran.stdout.splitlines()[-1])
    if all(words.startswith("-") for words in verdicts):
        pytest.skip(f"{dialect} is not there: {verdicts[0]}")
    refused = {
        (job, code, *new): words
        for (job, code, new, _), words in zip(rows, verdicts, strict=True)
        if words and not words.startswith("-")
    }
    assert refused == {}, f"of {len(rows)}"
