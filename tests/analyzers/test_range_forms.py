"""Names of ranges are looked at once for each form: emit_nvtx numbers every operator."""

from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.range_names import find_known_ranges
from tests.analyzers.tiny import trace_of
from tests.captures.timeline import TimelineBuilder

US = 1_000


def test_numbered_operators_cost_one_look_for_each_form(tmp_path: Path) -> None:
    """1,000 names in two forms, and four that mean something, numbers and all."""
    builder = TimelineBuilder()
    process = builder.process()
    thread = process.thread()
    names = [f"aten::view, seq = {i}, op_id = {i + 1}" for i in range(500)]
    names += [f"aten::mm, op_id = {i}, sizes = [[{i}, 32], [32, 16]]" for i in range(500)]
    names += ["step 3", "pp_p2p send 4", "pp-p2p_communication", "ep a2a 7"]
    for i, name in enumerate(names):
        thread.range(name, i * US, i * US + 900)
    process.device(gpu_name="NVIDIA H100 80GB HBM3").kernel("k", 5 * US, 6 * US)
    trace = trace_of(builder, tmp_path)
    asked: list[str] = []
    assert trace.range_names_like(asked.append) == []
    assert len(asked) == 2 + 4
    known = find_known_ranges(trace)
    named = {
        trace.strings[trace.ranges.name[row]]: DIMENSIONS[d]
        for row, d in zip(known.comm, known.comm_dimension, strict=True)
    }
    assert named == {"pp_p2p send 4": "pp", "pp-p2p_communication": "pp", "ep a2a 7": "ep"}
    assert [trace.strings[trace.ranges.name[row]] for _, rows in known.steps for row in rows] == ["step 3"]
