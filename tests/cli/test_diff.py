"""perfdoc diff in a real process: a published pair, planted faults, every kind of side, what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from perfdoc.compare.diff.result import json_schema
from perfdoc.results import to_json
from tests.amount import some
from tests.command import perfdoc
from tests.planted.capture import write_capture
from tests.reports.build import ledger, one_rank, rank

MODEL = ("simulate", "llama3-8b", "--layout", "tp=2,dp=2,micro_batches=2,seq=1024", "--steps", "1")


def diff(*arguments: str | Path, cwd: Path) -> dict[str, Any]:
    done = perfdoc("diff", *arguments, "--format", "json", "--no-replay", cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(found, json_schema())
    return found


def test_a_published_pair(shared_traces: Path, tmp_path: Path) -> None:
    pair = [shared_traces / "nsys" / f"sp_2gpu_{side}.sqlite" for side in ("before", "after")]
    found = diff(*pair, cwd=tmp_path)
    (dimension,) = found["dimensions"]
    exposed = dimension["exposed"]
    # Its owner published 25.40 -> 33.74 ms, summed over both GPUs.
    assert (exposed["before_ns"], exposed["after_ns"]) == (17_172_652 + 8_229_100, 9_989_016 + 23_753_085)
    assert [round(exposed[k] / 1e6, 2) for k in ("before_ns", "after_ns")] == [25.40, 33.74]
    assert found["basis"] == "window"
    assert sum(x["change_ns"] for x in found["leaves"]) == found["total"]["change_ns"]
    assert found["noise"]["state"] == "not_measured"


@pytest.mark.parametrize(
    ("fault", "leaf", "rank_number"),
    some([("gc=30", "idle.gc", 0), ("late_rank=1:1.5", "compute", 1)], lambda case: case[1] == "compute"),
)
def test_a_planted_fault_is_on_its_leaf(fault: str, leaf: str, rank_number: int, tmp_path: Path) -> None:
    assert perfdoc(*MODEL, "-o", "a", cwd=tmp_path).returncode == 0
    assert perfdoc(*MODEL, "--fault", fault, "-o", "b", cwd=tmp_path).returncode == 0
    words = ["--config-before", "a/job.yaml", "--config-after", "b/job.yaml"]
    found = diff("a", "b", *words, cwd=tmp_path)
    one, two = (json.loads((tmp_path / n / "answer.json").read_text())["ranks"] for n in "ab")
    for row, before, after in zip(found["ranks"], one, two, strict=True):
        planted = flat(after["ledger_ns"], flat(before["ledger_ns"], {}, -1), 1)
        assert row["leaves_change_ns"] == {k: v for k, v in planted.items() if v}
        assert row["change_ns"] == sum(planted.values())
    late = found["ranks"][rank_number]["leaves_change_ns"]
    assert max(late, key=lambda k: late[k]) == leaf
    assert late[leaf] > 10_000_000
    assert (found["outcome"], found["noise"]["within_noise"]) == ("longer", None)
    assert found["configuration"]["state"] == "measured"
    assert found["configuration"]["settings"] == []
    assert found["per_token"]["change_frac"] == pytest.approx(found["mean"]["change_frac"])


def flat(ledger_ns: dict[str, Any], into: dict[str, int], sign: int) -> dict[str, int]:
    for name, value in ledger_ns.items():
        for inner, ns in value.items() if isinstance(value, dict) else [("", value)]:
            key = f"{name}.{inner}" if inner else name
            into[key] = into.get(key, 0) + sign * ns
    return into


def test_a_capture_is_its_own_diagnosis(tmp_path: Path) -> None:
    demo = write_capture(tmp_path / "demo")
    assert perfdoc("analyze", demo, "-o", "report", "--no-replay", cwd=tmp_path).returncode == 0
    found = diff(demo, "report", cwd=tmp_path)
    assert (found["outcome"], found["total"]["change_ns"]) == ("no_change", 0)
    assert [found[k]["kind"] for k in ("before", "after")] == ["traces", "diagnosis"]
    assert not any(x["change_ns"] for x in found["leaves"])
    assert {f["code"] for f in found["flags"]} == {"same-captures", "taken-on-trust"}
    assert found["noise"]["before_steps"] == 4
    both = diff(demo, f"{demo}", cwd=tmp_path)
    assert {x["within_noise"] for x in both["leaves"]} == {True}
    said = perfdoc("diff", demo, demo, cwd=tmp_path)
    assert said.stdout.startswith("No change: a step takes ")
    assert said.stderr == ""


def test_files_are_written_whole_and_not_over_others(tmp_path: Path) -> None:
    demo = write_capture(tmp_path / "demo")
    written = perfdoc("diff", "--no-replay", demo, demo, "-o", "out", "--format", "markdown", cwd=tmp_path)
    assert written.returncode == 0
    assert written.stdout == (tmp_path / "out" / "diff.md").read_text()
    jsonschema.validate(json.loads((tmp_path / "out" / "diff.json").read_bytes()), json_schema())
    again = perfdoc("diff", demo, demo, "-o", "out", cwd=tmp_path)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "holds diff.json and diff.md already" in again.stderr
    assert perfdoc("diff", "--no-replay", demo, demo, "-o", "out", "--force", cwd=tmp_path).returncode == 0
    assert perfdoc("diff", demo, demo, "-o", "demo/demo.sqlite", cwd=tmp_path).returncode == 2


def test_what_is_not_comparable_is_one_line(tmp_path: Path) -> None:
    demo = write_capture(tmp_path / "demo")
    (window := tmp_path / "diagnosis.json").write_bytes(
        to_json(replace(one_rank(), ranks=[rank(0, ledger(compute=5)), rank(1, ledger(compute=5))]))
    )
    for words, said in (
        ((demo, window), "not comparable"),
        ((demo, "nothing.sqlite"), "does not exist"),
        ((demo, demo, "--step-range", "("), "is not a regular expression"),
        ((demo, demo, "--comm-kernel", "("), "is not a regular expression"),
        ((demo, demo, "--config-after", "nothing.yaml"), "nothing.yaml"),
    ):
        done = perfdoc("diff", *words, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert said in done.stderr


def test_a_folder_of_ranks_against_a_list(tmp_path: Path) -> None:
    demo = write_capture(tmp_path / "demo")
    (tmp_path / "two").mkdir()
    shutil.copy(demo, tmp_path / "two" / "x.sqlite")
    assert diff("two", "'demo/demo.sqlite'", cwd=tmp_path)["outcome"] == "no_change"
