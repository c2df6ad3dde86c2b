"""Settings of public configurations: what lint finds in them, and in each with a mistake planted into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdoc.knobs.lint.finding import Report
from perfdoc.knobs.lint.text import lint

_FOLDER = Path(__file__).with_name("corpus")
_DIALECT = {"torchtitan": "torchtitan", "verl": "verl", "megatron_lm": "megatron_lm"} | {
    "megatron_bridge": "megatron_bridge"
}
"""By file of the corpus; the others name it for each case."""


def cases() -> Iterator[Any]:
    for path in sorted(_FOLDER.glob("*.yaml")):
        for case in yaml.safe_load(path.read_text(encoding="utf-8")):
            of_file = _DIALECT.get(path.stem) or case.get("dialect")
            of_file = of_file or ("deepspeed" if case["file"] == "a.json" else "accelerate")
            yield pytest.param(case, of_file, id=case["source"].rpartition("/")[2])


def found(report: Report) -> list[str]:
    return sorted(f"{f.code} {f.knob}" for f in report.findings)


@pytest.mark.parametrize(("case", "dialect"), [*cases()])
def test_public_configurations(case: dict[str, Any], dialect: str) -> None:
    report = lint(case["text"], case["file"])
    assert report.dialect == dialect
    assert found(report) == sorted(case["finds"])
    lines = case["text"].split("\n")
    for finding in report.findings:
        assert finding.key.rpartition(".")[2] in lines[finding.line - 1], "the line that is blamed holds it"


@pytest.mark.parametrize(("case", "dialect"), [*cases()])
def test_planted_mistakes(case: dict[str, Any], dialect: str) -> None:
    assert case["planted"]
    for planted in case["planted"]:
        assert planted["put"] in case["text"], planted
        text = case["text"].replace(planted["put"], planted["with"], 1)
        assert planted["finds"] not in case["finds"] or len(found(lint(text, case["file"]))) != len(
            case["finds"]
        )
        assert planted["finds"] in found(lint(text, case["file"])), planted


def test_the_corpus_is_large_enough() -> None:
    sources = [case.values[0]["source"] for case in cases()]
    assert len(sources) == len(set(sources)) >= 30
