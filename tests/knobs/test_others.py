"""Frameworks that are not checked are named, and those that wrap a known one are read as it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdoc.knobs.lint.text import lint

FILES: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("other_frameworks.yaml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("one", FILES, ids=[one["file"] for one in FILES])
def test_a_file_is_never_taken_for_another_framework(one: dict[str, Any]) -> None:
    report = lint(one["text"], one["file"])
    assert report.dialect == one["dialect"], report.dialect_reason
    assert one["reason"] in report.dialect_reason
    assert [f for f in report.findings if f.severity != "note"] == []
    assert {name: report.values.get(name) for name in one["knows"]} == one["knows"]


def test_a_mistake_inside_is_told_under_the_wrapped_frameworks_rule() -> None:
    text = next(one["text"] for one in FILES if one["file"] == "primus.yaml")
    wrong = text.replace("use_distributed_optimizer: true", "use_distributed_optimizer: false")
    found = [f.why for f in lint(wrong, "primus.yaml").findings]
    assert any("(param-gather-needs-sharding)" in why for why in found)


def test_a_document_that_becomes_a_script_is_one() -> None:
    command = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --overlap-param-gather"
    text = f"export NCCL_DEBUG=WARN\ncat > job.sh <<'EOF'\n{command}\nEOF\n"
    assert "overlap_param_gather" in lint(text + "sbatch job.sh\n", "submit.sh").values
    notes = text.replace("cat > job.sh", "cat > notes.txt")
    assert lint(notes, "submit.sh").values == {"nccl_debug": "WARN"}
