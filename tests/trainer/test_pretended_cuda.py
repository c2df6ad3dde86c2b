"""What the trainer does where torch has a GPU, on tensors without data (`pretended_cuda.py`)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.launch import need_megatron


@pytest.fixture(scope="module")
def found() -> Any:
    need_megatron()
    program = Path(__file__).with_name("pretended_cuda.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


def test_every_shipped_configuration_is_built_on_the_gpu(found: Any) -> None:
    for name, case in found.items():
        assert "failed" not in case, (name, case)
        assert case["devices"] == ["cuda:0"], name
        assert case["dtypes"] == ["torch.float32" if name.startswith("tiny") else "torch.bfloat16"], name


def test_the_forward_pass_stays_there_and_its_losses_are_fp32(found: Any) -> None:
    outputs = {name: case["output"] for name, case in found.items() if "output" in case}
    assert outputs == {
        "gpt_125m": ["cuda:0", "torch.float32", 8, 2048],
        "llama3_8b": ["cuda:0", "torch.float32", 1, 8192],
        "tiny": ["cuda:0", "torch.float32", 4, 128],
        "tiny-cp2": ["cuda:0", "torch.float32", 4, 64],  # half of the sequence
        "tiny-graphs": ["cuda:0", "torch.float32", 4, 128],
    }


def test_attention_is_what_fused_kernels_take(found: Any) -> None:
    """dtype, heads of queries and of keys on this rank, whether a mask is given."""
    assert found["llama3_8b"]["attention"] == [["torch.bfloat16", 16, 4, False]]  # TP 2 of 32 and 8 heads
    assert found["tiny"]["attention"] == [["torch.bfloat16", 4, 2, False]]  # fp32 else
    assert found["tiny-cp2"]["attention"] == [["torch.float32", 4, 4, True]]  # keys repeated for each query
    assert [name for name, case in found.items() if case["said_bf16"]] == ["tiny", "tiny-graphs"]


def test_a_captured_run_draws_from_generators_that_a_graph_can_hold(found: Any) -> None:
    assert found["tiny-graphs"]["tracked"] == ["Generator"]
    assert found["tiny"]["tracked"] == ["Tensor"]
