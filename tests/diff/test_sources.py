"""What an argument stands for, and diagnoses that lie."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfdoc.compare.side import captures_or_diagnosis, load
from perfdoc.compare.stored import read_diagnosis
from perfdoc.diagnose.asked import parse_request
from perfdoc.diagnose.diagnosis import diagnosis_of
from perfdoc.diagnose.measuring import measure_all
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.results import to_json
from perfdoc.traces import TraceError
from tests.gate.manifests import tiny_manifest
from tests.planted.capture import write_capture
from tests.profiling.build import a_manifest
from tests.reports.build import one_rank


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("demo") / "with space")


@pytest.fixture
def diagnosis(tmp_path: Path) -> Path:
    (path := tmp_path / "report" / "diagnosis.json").parent.mkdir()
    path.write_bytes(to_json(one_rank()))
    return path


def test_files_folders_lists_and_patterns(demo: Path, tmp_path: Path) -> None:
    (copy := tmp_path / "copy.sqlite").write_bytes(demo.read_bytes())
    assert captures_or_diagnosis(str(demo)) == [demo]
    assert captures_or_diagnosis(str(demo.parent)) == [demo]
    assert captures_or_diagnosis(f"'{demo}' {copy}") == [demo, copy]
    assert captures_or_diagnosis(f"{tmp_path}/*.sqlite") == [copy]
    with pytest.raises(TraceError, match="does not exist"):
        captures_or_diagnosis(str(tmp_path / "no such"))
    with pytest.raises(TraceError):
        captures_or_diagnosis("it's not there")


def test_a_diagnosis_alone_in_a_folder(diagnosis: Path, demo: Path) -> None:
    assert captures_or_diagnosis(str(diagnosis)) == diagnosis
    assert captures_or_diagnosis(str(diagnosis.parent)) == diagnosis
    run = diagnosis.parent.parent
    assert captures_or_diagnosis(str(run)) == diagnosis
    (run / "traces").mkdir()
    (capture := run / "traces" / "rank0.sqlite").write_bytes(demo.read_bytes())
    assert captures_or_diagnosis(str(run)) == [capture]  # measured anew, as the other side is
    capture.write_bytes(b"SQLite format 3\0 no more")
    assert captures_or_diagnosis(str(run)) == [capture]  # a damaged capture is told, not gone round


def test_a_diagnosis_in_its_run_directory_has_the_runs_settings(diagnosis: Path) -> None:
    run = RunDirectory.create(diagnosis.parent.parent / "run")
    whole = a_manifest()
    run.write_manifest(whole)
    (run.path / "report").mkdir()
    inside = run.path / "report" / "diagnosis.json"
    inside.write_bytes(diagnosis.read_bytes())
    found = load(str(inside))
    assert found.configuration is not None
    assert found.configuration.values["tensor_model_parallel_size"] == whole.layout.tensor
    assert (found.world_size, found.facts.model) == (whole.layout.world_size, whole.model)
    assert found.versions == whole.versions
    # Two ranks and a batch for more: the file contradicts itself.
    (run.path / "run.json").unlink()
    run.write_manifest(tiny_manifest(bucket_size=1000, created_utc="2026-11-21T00:00:00Z"))
    with pytest.raises(TraceError, match="does not fit the settings that go with it"):
        load(str(inside))


def set_at(tree: Any, path: str, value: object) -> None:
    *keys, last = path.split("/")
    for key in keys:
        tree = tree[int(key) if key.isdecimal() else key]
    tree[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("ranks/0/ledger_ns/compute", 5, "contradicts itself"),
        ("ranks/0/ledger_ns/compute", -5, "contradicts itself"),
        ("ranks/0/ledger_ns/compute", 2**63, "contradicts itself"),
        ("ranks/0/ledger_ns/compute", 2**80, "contradicts itself|is no diagnosis"),
        ("ranks/0/window/steps", 0, "contradicts itself"),
        ("ranks/0/window/step_list", [], "contradicts itself"),
        ("ranks/0/communication/0/dimension", "up", "contradicts itself"),
        ("ranks/0/ledger_ns", None, r"is no diagnosis.*ledger_ns"),
        ("ranks/0/communication/0/count", 10**400, "contradicts itself"),
        ("ranks/0/communication/0/hidden_ns", -1, "contradicts itself"),
        ("ranks/0/kernels_only_capture/busy_ns", 10**400, "contradicts itself"),
        ("analyses/kernels/top/0/count", 0, "impossible kernel times"),
        ("analyses/kernels/top/0/count", 10**400, "impossible kernel times"),
        ("analyses/kernels/classes/0/total_ns", -7, "impossible kernel times"),
        ("ranks", [], "holds no rank"),
        ("schema_version", "2.0", "has schema version 2.0; this perfdoc reads 1"),
        ("schema_version", "", "has schema version"),
    ],
)
def test_a_diagnosis_that_lies_is_refused(diagnosis: Path, path: str, value: object, said: str) -> None:
    tree = json.loads(diagnosis.read_bytes())
    set_at(tree, path, value)
    diagnosis.write_text(json.dumps(tree))
    with pytest.raises(TraceError, match=said) as error:
        load(str(diagnosis))
    assert "\n" not in str(error.value)


def test_damaged_bytes_are_refused(diagnosis: Path) -> None:
    content = diagnosis.read_bytes()
    for bad in (content[: len(content) // 2], content.replace(b"compute", b"\xff\xfe"), b"[" * 100_000):
        diagnosis.write_bytes(bad)
        with pytest.raises(TraceError):
            read_diagnosis(diagnosis)


def test_a_side_is_judged_as_analyze_judges_it(demo: Path) -> None:
    request = parse_request([str(demo)], jobs=1)
    analysed, _ = diagnosis_of(measure_all(request), None)
    side = load(str(demo)).diagnosis
    assert (side.rules, side.analyses.replay) == (analysed.rules, analysed.analyses.replay)
    quick = load(str(demo), replace(request, replay=False)).diagnosis
    assert quick.analyses.replay != analysed.analyses.replay
