from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdoc.profiling.own.megatron import follow_megatron
from tests.megatron_core import import_core
from tests.profiling.own.traces import counted, names_in

STAND_IN = Path(__file__).with_name("megatron_stand_in.py")


def test_the_loop_is_marked_from_outside(tmp_path: Path) -> None:
    import_core("megatron.core")
    subprocess.run(
        [sys.executable, str(STAND_IN), str(tmp_path)], check=True, capture_output=True, timeout=300
    )
    names = counted(names_in(tmp_path / "traces" / "rank0.json.gz"))
    steps = {name for name in names if name.startswith("perfdoc.step")}
    assert steps == {"perfdoc.step 102", "perfdoc.step 103"}
    # Two steps of two micro-batches each.
    assert (names["perfdoc.forward"], names["perfdoc.backward"], names["perfdoc.optimizer"]) == (4, 4, 2)
    assert names["perfdoc.micro_batch 0"] == names["perfdoc.micro_batch 1"] == 2
    assert names["perfdoc.data"] == 4
    assert any(name.startswith("perfdoc.group group=DATA_PARALLEL_GROUP") for name in names)


def test_a_module_without_train_step_is_refused() -> None:
    with pytest.raises(ValueError, match="train_step"):
        follow_megatron(SimpleNamespace())
