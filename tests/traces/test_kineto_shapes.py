"""Shapes, types and scalars of operators as the PyTorch reader hands them on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfdoc.traces.kineto import shapes
from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.model import Trace

COLUMNS = ("dims", "dtypes", "values", "strides")


def read(folder: Path, *operators: tuple[str, str], category: str = "cpu_op") -> Trace:
    """Operators as (name, arguments as they stand in the file)."""
    rows = [
        f'{{"ph":"X","cat":"{category}","name":"{name}","pid":1,"tid":1,"ts":{i},"dur":1,"args":{args}}}'
        for i, (name, args) in enumerate(operators)
    ]
    path = folder / "shapes.json"
    path.write_text('{"traceEvents":[' + ",".join(rows) + "]}")
    return read_kineto(path)


def texts(trace: Trace) -> list[tuple[str, ...]]:
    columns = [trace.names(getattr(trace.operators, c)) for c in COLUMNS]
    return list(zip(*columns, strict=True))


def test_equal_inputs_are_one_text_however_they_are_written(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        (
            "aten::mm",
            '{"External id": 1, "Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"]}',
        ),
        (
            "aten::mm",
            '{"Input Dims": [[8,\\n16],  [16,4]], "Input type": ["float","float"]}'.replace("\\n", "\n"),
        ),
        ("aten::mm", '{"Input dims": [[8, 16], [16, 4]]}'),
        ("aten::mm", "{}"),
    )
    shape, types = "[[8,16],[16,4]]", '["float","float"]'
    assert texts(found) == [(shape, types, "", ""), (shape, types, "", ""), (shape, "", "", ""), ("",) * 4]
    assert "operator shapes (record_shapes)" in found.recorded


def test_scalars_are_kept_where_the_work_follows_from_them(tmp_path: Path) -> None:
    args = '{"Input Dims": [[8, 4], []], "Concrete Inputs": ["", "[1, 2]"]}'
    found = read(tmp_path, ("aten::view", args), ("aten::cudnn_convolution", args), ("aten::sum", args))
    assert [t[2] for t in texts(found)] == ["", '["","[1, 2]"]', '["","[1, 2]"]']


def test_strides_are_kept_where_an_input_is_expanded(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        ("aten::mul", '{"Input Dims": [[8, 4]], "Input Strides": [[4, 1]]}'),
        ("aten::mul", '{"Input Dims": [[8, 4]], "Input Strides": [[0, 1]]}'),
        ("aten::mul", '{"Input Dims": [[8, 4]], "Input Strides": [[10, 1]]}'),
    )
    assert [t[3] for t in texts(found)] == ["", "[[0,1]]", ""]


ODD: list[Any] = ["rubbish", 7, None, {"a": 1}, True]


@pytest.mark.parametrize("dims", ODD)
def test_what_is_no_list_is_unknown(tmp_path: Path, dims: object) -> None:
    found = read(tmp_path, ("aten::mm", json.dumps({"Input Dims": dims, "Input type": ["float"]})))
    assert texts(found) == [("",) * 4]


@pytest.mark.parametrize("dims", ["[[1, nan]]", "[" * 400 + "]" * 400, "[[1e999]]", "[[" + "9" * 400 + "]]"])
def test_odd_lists_refuse_no_file(tmp_path: Path, dims: str) -> None:
    found = read(tmp_path, ("aten::mm", f'{{"Input Dims": {dims}}}'), ("aten::mm", '{"Input Dims": [[8]]}'))
    assert texts(found)[1][0] == "[[8]]"


def test_texts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MAX_TEXT_BYTES", 20)
    monkeypatch.setattr(shapes, "MAX_DISTINCT_BYTES", 30)
    found = read(
        tmp_path,
        ("aten::mm", '{"Input Dims": [[1000,1000,1000,1000]]}'),
        ("aten::mm", '{"Input Dims": [[1000,1000]]}'),
        ("aten::mm", '{"Input Dims": [[1000,1001]]}'),
        ("aten::mm", '{"Input Dims": [[1000,1002]]}'),
        ("aten::mm", '{"Input Dims": [[1000,1000]]}'),
    )
    assert [t[0] for t in texts(found)] == ["", "[[1000,1000]]", "[[1000,1001]]", "", "[[1000,1000]]"]
