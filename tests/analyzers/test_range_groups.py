"""Numbered names of ranges as one kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.device.proposed_ranges import group_of, range_groups
from tests.analyzers.tiny import trace_of
from tests.captures.timeline import TimelineBuilder


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("aten::add, op_id = 999599", "aten::add"),
        ("aten::mm, seq = 11, op_id = 7, sizes = [[2, 4], [4]], input_op_ids = [(1,0)]", "aten::mm"),
        ("ProfilerStep#10", "ProfilerStep##"),
        ("Warm-up Step 3", "Warm-up Step #"),
        ("all_reduce grad [layers.9.ffn.w1.weight]", "all_reduce grad [layers.#.ffn.w#.weight]"),
        ("forward pass", "forward pass"),
        ("a, sequence = 2", "a, sequence = #"),
    ],
)
def test_the_group_of_a_name(name: str, group: str) -> None:
    assert group_of(name) == group


def test_groups_are_summed_and_one_name_keeps_its_numbers(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    thread = process.thread()
    process.device().kernel("gemm", 0, 10)
    for i in range(5):
        thread.range(f"aten::mm, op_id = {i}", 100 * i, 100 * i + 10)
    thread.range("epoch 3", 0, 40)
    trace = trace_of(builder, tmp_path)
    assert [(g.name, g.count, g.total_ns) for g in range_groups(trace)] == [
        ("aten::mm", 5, 50),
        ("epoch 3", 1, 40),
    ]
    assert [g.count for g in range_groups(trace, each=True)] == [1] * 6
