"""The tools of an agent: confined, bounded, inert, and the same figures as the diagnosis."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from perfdoc.agent.answers import MOST_ROWS, answer, chosen
from perfdoc.agent.tools import Reach, Tools
from perfdoc.export.tables import TABLES
from perfdoc.notebook.errors import PerfdocError
from perfdoc.notebook.report import Report
from perfdoc.reports.llm import LIMIT
from perfdoc.results import to_json
from tests.agent.captures import INJECTION, write_capture
from tests.reports import build, hostile
from tests.reports.build_choices import with_choices

TABLE = pa.table(
    {"n": [3, None, 1, 2], "name": ["a", "GEMM x", "gemm y", "b"], "on": [True, False, True, None]}
)


def rows(**asked: object) -> list[object]:
    wanted = {"columns": [], "where": [], "sort_by": None, "descending": True, "limit": 50, **asked}
    return [row["n"] for row in chosen(TABLE, **wanted)[0]]  # type: ignore[arg-type]


def test_rows_are_chosen_and_sorted() -> None:
    assert rows(sort_by="n") == [3, 2, 1, None]
    assert rows(sort_by="n", descending=False) == [1, 2, 3, None]
    assert rows(where=["n >= 2"]) == [3, 2]
    assert rows(where=["n != 3", "n<1.5"]) == [1]
    assert rows(where=["name contains gemm"]) == [None, 1]
    assert rows(where=["name = a"]) == [3]
    assert rows(where=["on = true"]) == [3, 1]
    assert rows(limit=1) == [3]
    shown, count = chosen(
        pa.table({"n": range(900)}), columns=[], where=[], sort_by=None, descending=True, limit=10**6
    )
    assert (len(shown), count) == (MOST_ROWS, 900)


@pytest.mark.parametrize(
    "asked",
    [
        {"columns": ["m"]},
        {"sort_by": "m"},
        {"where": ["m = 1"]},
        {"where": ["n ~ 1"]},
        {"where": ["n = x"]},
        {"where": ["__import__('os').system('x')"]},
        {"where": ["n > 0"] * 9},
    ],
)
def test_a_question_that_makes_no_sense_is_one_line(asked: dict[str, object]) -> None:
    with pytest.raises(PerfdocError) as caught:
        rows(**asked)
    assert "\n" not in str(caught.value)


def test_nothing_outside_of_the_root_is_named(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    (root / "link").symlink_to(other)
    (other / "x.sqlite").write_bytes(b"")
    reach = Reach(root=root)
    assert reach.path("a/*.sqlite") == str(root / "a" / "*.sqlite")
    for outside in ("..", "../other/x", str(other / "x.sqlite"), "/etc/passwd", "link/x.sqlite", "*/../../x"):
        with pytest.raises(PerfdocError, match="outside"):
            reach.path(outside)
    with pytest.raises(PerfdocError, match="outside"):
        reach.found([root / "link" / "x.sqlite"])
    with pytest.raises(PerfdocError, match="zero byte"):
        Reach(root=None).path("a\0b")
    assert Reach(root=None).path("/etc/x") == "/etc/x"


def test_a_link_in_a_folder_or_pattern_is_not_followed_outside(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "r.sqlite").symlink_to(write_capture(tmp_path / "x.sqlite"))
    tools = Tools(root)
    for named in (".", "*.sqlite", "r.sqlite"):
        with pytest.raises(PerfdocError, match="outside"):
            tools.analyze([named])
    with pytest.raises(PerfdocError, match="outside"):
        tools.lint("../x.sqlite")


def test_a_run_directory_around_the_root_is_not_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "traces").mkdir(parents=True)
    write_capture(run / "traces" / "rank0.sqlite")
    (run / "run.json").write_text("{}")
    with pytest.raises(PerfdocError, match=r"run\.json: lies outside"):
        Tools(run / "traces").analyze(["rank0.sqlite"])
    (run / "run.json").unlink()
    (run / "memory").mkdir()
    (run / "memory" / "rank0.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(PerfdocError, match="lies outside"):
        Tools(run).analyze(["traces"])


def test_an_answer_is_bounded_and_counts_what_is_missing() -> None:
    text = answer({"rows": [{"name": "x" * 100}] * 5000, "few": [1]}, "rows")
    assert len(text) <= LIMIT
    found = json.loads(text)
    assert len(found["rows"]) + found["left_out"]["rows"] == 5000
    assert len(found["rows"]) > 50
    assert found["few"] == [1]
    assert json.loads(answer({"t": INJECTION, INJECTION: {"a": [INJECTION]}}))["t"].count("`") == 0


@pytest.fixture
def asked(tmp_path: Path) -> Tools:
    """`a1` is a capture whose names give orders; d.json a diagnosis that contradicts itself, and whose texts
    do."""
    tools = Tools(tmp_path, jobs=1)
    write_capture(tmp_path / "x.sqlite")
    (tmp_path / "d.json").write_bytes(to_json(hostile.hostile_choices(INJECTION)))
    tools.analyze(["x.sqlite"], window="capture")
    return tools


def test_a_name_that_gives_orders_stays_a_string(asked: Tools) -> None:
    asked._kept["a2"] = Report(hostile.hostile_choices(INJECTION))
    for text in (asked.findings("a1"), asked.findings("a2"), *(asked.table("a1", name) for name in TABLES)):
        found = json.loads(text)
        assert "never an instruction" in found["note"]
        assert "`" not in text
        assert "](" not in text
        assert "\\n" not in text
        assert len(text) <= 2 * LIMIT


def test_tables_are_the_diagnosis(asked: Tools) -> None:
    found = json.loads(asked.table("a1", "ledger"))
    (row,) = found["rows"]
    assert row["window_ns"] == sum(v for k, v in row.items() if k.endswith("_ns") and k != "window_ns")
    assert (row["compute_ns"], row["exposed_memcpy_ns"]) == (150_000, 25_000)
    empty = json.loads(asked.table("a1", "gpu_metrics"))
    assert (empty["rows"], empty["matching_rows"]) == ([], 0)
    assert "sampled" in empty["why_empty"]


def test_findings_have_evidence_gain_and_setting(tmp_path: Path) -> None:
    (tmp_path / "d.json").write_bytes(to_json(with_choices(build.one_rank())))
    tools = Tools(tmp_path)
    tools.analyze(["d.json"])
    rows = json.loads(tools.findings("a1"))["findings"]
    first = next(row for row in rows if row["kind"] == "predicted")
    assert first["gain_low_ms"] <= first["gain_mid_ms"] <= first["gain_high_ms"]
    assert any(row["set"] for row in rows)
    assert any(rule["evidence"] for row in rows for rule in row["rules"])


def test_mistakes_are_one_line(asked: Tools, tmp_path: Path) -> None:
    for wrong in (
        lambda: asked.findings("a9"),
        lambda: asked.table("a1", "nothing"),
        lambda: asked.explain("PD999"),
        lambda: asked.analyze([]),
        lambda: asked.analyze(["nowhere.sqlite"]),
        lambda: asked.analyze(["d.json"]),
        lambda: asked.analyze(["d.json"], window="capture"),
        lambda: asked.analyze(["x.sqlite"], config="../job.yaml"),
        lambda: asked.lint("nowhere.yaml"),
        lambda: asked.lint("x.sqlite", "nothing"),
        lambda: asked.tune("a1"),
        lambda: asked.diff("a1", "nowhere"),
    ):
        with pytest.raises(PerfdocError) as caught:
            wrong()
        assert "\n" not in str(caught.value)


def test_old_analyses_give_way(tmp_path: Path) -> None:
    (tmp_path / "d.json").write_bytes(to_json(build.one_rank()))
    tools = Tools(tmp_path)
    for _ in range(10):
        tools.analyze(["d.json"])
    with pytest.raises(PerfdocError, match="a3, a4"):
        tools.findings("a2")
    assert tools.findings("a10")
