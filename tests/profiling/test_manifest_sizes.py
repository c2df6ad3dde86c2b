"""Sizes in run.json that nothing can have are refused with their place: they are divided by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.manifest import encode, read_manifest
from tests.profiling.build import a_manifest


@pytest.mark.parametrize("value", [0, -1, 10**16, 2**70, 1.5, "2"])
@pytest.mark.parametrize(
    "place",
    [
        *("layout.world_size", "layout.data", "layout.tensor", "layout.micro_batches"),
        *("model.layers", "model.attention_heads", "batch.micro_sequences", "hardware.nodes"),
    ],
)
def test_impossible_sizes(tmp_path: Path, place: str, value: object) -> None:
    tree = json.loads(encode(a_manifest()))
    part, key = place.split(".")
    tree[part][key] = value
    path = tmp_path / "run.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(TraceError) as caught:
        read_manifest(path)
    assert "is no manifest" in caught.value.what
    if not isinstance(value, int) or value < 2**63:
        assert place in caught.value.what


@pytest.mark.parametrize("content", [b"\xff", b'{"schema_version": 1, "dtype": "\xff"}'])
def test_no_utf8(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_manifest(path)
    assert "codec" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "good"),
    [
        ("hardware.peak_flops_per_second", 0, False),
        ("hardware.peak_flops_per_second", 1e-300, False),
        ("hardware.peak_flops_per_second", 1, True),
        ("hardware.peak_flops_per_second", 1e24, True),
        ("hardware.peak_flops_per_second", 1e25, False),
        ("flops.per_step", 10**30, True),
        ("flops.per_step", 10**30 + 1, False),
        ("flops.per_step", 10**400, False),
        ("flops.per_step", -1, False),
    ],
)
def test_flops_and_peaks_that_nothing_reaches(tmp_path: Path, place: str, value: float, good: bool) -> None:
    """Their quotient is a time."""
    tree = json.loads(encode(a_manifest()))
    part, key = place.split(".")
    tree[part][key] = value
    path = tmp_path / "run.json"
    path.write_text(json.dumps(tree))
    if good:
        assert getattr(getattr(read_manifest(path), part), key) == value
        return
    with pytest.raises(TraceError, match=part) as caught:
        read_manifest(path)
    assert "\n" not in str(caught.value)
