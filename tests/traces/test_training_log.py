"""Step times in the logs of other trainers."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.traces import TraceError
from perfdoc.traces.training_logs.read import read_training_log

MEGATRON_LM = """\
[Rank 0] (after 1 iterations) memory (MB) | allocated: 10770.3 | max allocated: 15754.8
 [2025-08-01 07:19:37] iteration        1/    5000 | consumed samples:          128 | elapsed time per iteration (ms): 19138.8 | throughput per GPU (TFLOP/s/GPU): 80.2 | learning rate: 6.976744E-08 | global batch size:   128 | lm loss: 1.043863E+01 | grad norm: 26.203 |
 [2025-08-01 07:19:50] iteration        2/    5000 | consumed samples:          256 | elapsed time per iteration (ms): 12936.1 | throughput per GPU (TFLOP/s/GPU): 118.7 | learning rate: 1.395349E-07 | global batch size:   128 | lm loss: 1.044022E+01 | grad norm: 25.1 |
 validation loss at iteration 2 | lm loss value: 1.0E+01 | lm loss PPL: 2.2E+04 |
 [2025-08-01 07:20:03] iteration        2/    5000 | consumed samples:          256 | elapsed time per iteration (ms): 12900.0 | throughput per GPU (TFLOP/s/GPU): 119.0 | learning rate: 1.395349E-07 | global batch size:   128 | lm loss: 1.044022E+01 |
"""  # noqa: E501
BRIDGE = """\
ain_fp8_mx/0 Step Time : 9.12s GPU utilization: 661.0MODEL_TFLOP/s/GPU
ain_fp8_mx/0  [2025-12-22 15:18:24] iteration       40/      50 | consumed samples:        20480 | elapsed time per iteration (ms): 9121.5 | learning rate: 3.000000E-05 | global batch size:   512 | lm loss: 8.2E+00 |
ain_fp8_mx/0 Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU
ain_fp8_mx/0  [2025-12-22 15:18:33] iteration       50/      50 | consumed samples:        25600 | elapsed time per iteration (ms): 9089.0 | learning rate: 3.000000E-05 | global batch size:   512 | lm loss: 8.114214E+00 |
"""  # noqa: E501
NEMO = """\
[NeMo W 2025-08-19 14:27:47 rerun_state_machine:239] RerunStateMachine initialized
0: Training epoch 0, iteration 28/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: 28 | reduced_train_loss: 2.778 | train_step_timing in s: 0.189 | consumed_samples: 928 | val_loss: 2.861
0: Training epoch 0, iteration 29/99 | lr: 5.8e-06 | global_batch_size: 32 | global_step: 29 | reduced_train_loss: 2.782 | train_step_timing in s: 0.1903 | TFLOPS_per_GPU: 5.043e+02 | consumed_samples: 960
"""  # noqa: E501


def test_megatron_lm(tmp_path: Path) -> None:
    (log := tmp_path / "a.log").write_text(MEGATRON_LM)
    found = read_training_log(log)
    assert found.dialect == "megatron-lm"
    # Iteration 2 was done again after a restart: the later line counts.
    assert [(s.step, s.duration_ns, s.tflops_per_gpu, s.global_batch_size) for s in found.steps] == [
        (1, 19_138_800_000, 80.2, 128),
        (2, 12_900_000_000, 119.0, 128),
    ]
    assert found.interval == 1


def test_megatron_bridge(tmp_path: Path) -> None:
    (log := tmp_path / "a.log").write_text(BRIDGE)
    found = read_training_log(log)
    assert (found.dialect, found.interval) == ("megatron-bridge", 10)
    assert [(s.step, s.duration_ns, s.tflops_per_gpu) for s in found.steps] == [
        (40, 9_121_500_000, 661.0),
        (50, 9_089_000_000, 663.5),
    ]


def test_nemo(tmp_path: Path) -> None:
    (log := tmp_path / "a.log").write_bytes(("Epoch 0: 1%|\r" + NEMO).encode() + b"\xff\xfe\n")
    found = read_training_log(log)
    assert found.dialect == "nemo"
    assert [(s.step, s.duration_ns, s.tflops_per_gpu, s.global_batch_size) for s in found.steps] == [
        (28, 189_000_000, None, 32),
        (29, 190_300_000, 504.3, 32),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100_000,
        b"iteration 1/2 | elapsed time per iteration (ms): 0.0 |\n",  # no step takes no time
        b"iteration 1/2 | elapsed time per iteration (ms): nan |\n",
        b"iteration 1/2 | elapsed time per iteration (ms): 99999999999 |\n",  # three years
        b"elapsed time per iteration (ms): 5.0 |\n",
        b"train_step_timing in s: 5.0\n",
        b"iteration " * 100_000,
    ],
)
def test_what_is_no_step_is_none(tmp_path: Path, content: bytes) -> None:
    (log := tmp_path / "a.log").write_bytes(content)
    with pytest.raises(TraceError, match="holds no step times"):
        read_training_log(log)


@pytest.mark.parametrize("figure", ["0.0", "1e9", "1000000.0"])
def test_an_impossible_rate_is_unknown(tmp_path: Path, figure: str) -> None:
    (log := tmp_path / "a.log").write_text(MEGATRON_LM.replace("80.2", figure))
    assert [s.tflops_per_gpu for s in read_training_log(log).steps] == [None, 119.0]
    (log := tmp_path / "b.log").write_text(BRIDGE.replace("661.0", figure))
    assert [s.tflops_per_gpu for s in read_training_log(log).steps] == [None, 663.5]
