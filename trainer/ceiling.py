"""The peak that this run's MFU is a share of: the GPU's data sheet, else what was measured before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from perfdoc.profiling.gpus import peak_flops
from perfdoc.profiling.manifest import PeakKind
from perfdoc.profiling.measured import MeasuredCeilings
from perfdoc.trainer.adapt import cuda_available
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.flops import training_dtype

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Peak:
    """FLOP/s of one device in the dtype of the GEMMs; None where it is not known."""

    value: float | None = None
    kind: PeakKind | None = None
    source: str = ""


def read_measured(path: Path | None) -> MeasuredCeilings | None:
    """What `perfdoc run` measured, where it holds for this rank: its kind of device, and as many threads.

    None as well where the file cannot be read: a run does not fail for want of it.
    """
    if path is None:
        return None
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        found = msgspec.json.decode(path.read_bytes(), type=MeasuredCeilings)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if cuda_available():
        return found if found.device == torch.cuda.get_device_name() else None
    return found if found.kind == "cpu" and found.threads == torch.get_num_threads() else None


def peak_here(config: Config, measured: MeasuredCeilings | None) -> Peak:
    """The peak of this rank's device."""
    dtype = training_dtype(config)
    name = torch.cuda.get_device_name() if cuda_available() else None
    if dtype == "fp32" and name is not None and torch.backends.cuda.matmul.allow_tf32:
        dtype = "tf32"
    listed = peak_flops(name, dtype)
    if listed is not None:
        return Peak(value=listed, kind="datasheet", source=f"dense {dtype} peak of {name}")
    if measured is None or dtype not in measured.flops:
        return Peak()
    rate = measured.flops[dtype]
    return Peak(value=rate.best, kind="measured", source=f"{dtype}, {measured.text(rate)}")
