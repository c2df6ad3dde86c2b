"""Launchers in the style of the frameworks' own: read as what they are, without alarms."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from perfdoc.knobs.lint.text import lint
from tests.conftest import ROOT

CORPUS = ROOT / "tests" / "knobs" / "launchers.yaml"


def launchers() -> list[Any]:
    return [pytest.param(one, id=one["what"][:60]) for one in yaml.safe_load(CORPUS.read_text())]


@pytest.mark.parametrize("one", launchers())
def test_a_launcher_is_read_as_what_it_is(one: dict[str, Any]) -> None:
    report = lint(one["text"], one["file"])
    assert report.dialect == one["dialect"], report.dialect_reason
    known = {name: list(v) if isinstance(v, tuple) else v for name, v in report.values.items()}
    assert one["knows"].items() <= known.items(), known
    assert [(f.code, f.key, f.message) for f in report.findings if f.severity != "note"] == []


def test_a_script_that_goes_on_elsewhere_says_where() -> None:
    """Nothing in it is a setting of a job: what it runs has them."""
    (finding,) = lint("export NCCL_DEBUG=INFO\nsource ~/.bashrc\nbash inner.sh\n", "run.sh").findings
    assert (finding.code, finding.severity, finding.line) == ("PL307", "note", 3)
    whole = "export NCCL_DEBUG=INFO\nbash prepare.sh\ntorchrun pretrain_gpt.py --num-layers 4 --bf16"
    assert lint(whole, "run.sh").findings == ()
