"""docs/python.md: its blocks run, and give what they say; the planted answer of the demonstration."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfdoc.export.tables import TABLES
from perfdoc.simulator.forward.writing import write_demo

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "python.md"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """What the page's blocks leave, run as one script without a guard, beside the demonstration."""
    folder = tmp_path_factory.mktemp("notebook")
    write_demo(folder / "demo")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    script = folder / "page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    with contextlib.chdir(folder):
        left: dict[str, Any] = runpy.run_path(str(script))
        yield SimpleNamespace(**left, folder=folder)


def test_the_tables_are_those_of_the_diagnosis(ran: SimpleNamespace) -> None:
    report = ran.r
    ranks = report.diagnosis.ranks
    assert report.tables == TABLES
    assert report.ledger["window_ns"].tolist() == [rank.window.duration_ns for rank in ranks]
    assert report.ledger["idle_gc_ns"].tolist() == [rank.ledger_ns.idle.gc for rank in ranks]
    assert len(report.steps) == sum(len(rank.window.step_list) for rank in ranks) == 8
    assert report.kernels["total_ns"].tolist() == [k.total_ns for k in report.diagnosis.analyses.kernels.top]
    assert report.communication["bytes"].dtype == "Int64"
    assert report.kernels["total_ns"].dtype == "int64"
    # Captures without shapes of operators: by the model's shape.
    known = report.diagnosis.analyses.kernel_efficiency.operators
    assert report.operators["time_ns"].tolist() == [o.time_ns for o in known]
    assert set(report.operators["source"]) == {"model"}


def test_an_empty_table_says_why(ran: SimpleNamespace) -> None:
    metrics = ran.r.table("gpu_metrics")
    assert metrics.empty
    assert metrics.attrs["reason"]


def test_units_are_in_the_names(ran: SimpleNamespace) -> None:
    for name in TABLES:
        for column, type_ in ran.r.table(name).dtypes.items():
            if "time" in column or "duration" in column or column.startswith(("own_", "whole_")):
                assert column.endswith("_ns"), (name, column, type_)


def test_the_planted_answer_is_in_the_tables(ran: SimpleNamespace) -> None:
    answer = json.loads((ran.folder / "demo" / "answer.json").read_text())
    planted = next(fault for fault in answer["faults"] if fault["name"] == "gc")
    assert planted["cost_ns"] == pytest.approx(ran.r.ledger["idle_gc_ns"].sum(), rel=0.01)


def test_the_first_screen_and_the_files(ran: SimpleNamespace) -> None:
    html = ran.r._repr_html_()
    assert html.startswith("<pre ")
    assert "PD202" in html
    assert "--full" not in html, "a notebook has no options of the command"
    assert "\x1b" not in html
    page = (ran.folder / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert ran.same.diagnosis == ran.r.diagnosis


def test_a_comparison_with_itself_is_no_change(ran: SimpleNamespace) -> None:
    assert ran.d.result.outcome == "no_change"
    assert ran.d.ledger["change_ns"].abs().sum() == 0
    # Of a mean step of the four; each leaf is rounded.
    assert ran.d.ledger["before_ns"].sum() == pytest.approx(ran.r.ledger["window_ns"].sum() / 4, abs=20)
    assert ran.d.ranks["label"].tolist() == ["rank 0", "rank 1"]
    assert list(ran.d.settings.columns) == ["knob", "before", "after"]
    assert "No change" in ran.d._repr_html_()


def test_a_mistake_is_the_one_exception(ran: SimpleNamespace) -> None:
    for wrong in (
        lambda: ran.perfdoc.analyze("nowhere.sqlite"),
        lambda: ran.perfdoc.analyze([]),
        lambda: ran.perfdoc.load("demo/answer.json"),
        lambda: ran.perfdoc.diff("demo/traces", "nowhere"),
        lambda: ran.same.tuning(),
        lambda: ran.r.tuning(only=["nothing"]),
        lambda: ran.r.table("nothing"),
        lambda: ran.r.save("report.txt"),
        lambda: ran.r.save("no/such/folder/report.html"),
    ):
        with pytest.raises(ran.perfdoc.PerfdocError) as caught:
            wrong()
        assert "\n" not in str(caught.value)


def test_an_input_is_not_replaced(ran: SimpleNamespace, tmp_path: Path) -> None:
    target = tmp_path / "rank0.json"
    target.symlink_to(ran.folder / "demo" / "traces" / "rank0.sqlite")
    with pytest.raises(ran.perfdoc.PerfdocError, match="input"):
        ran.r.save(target)
