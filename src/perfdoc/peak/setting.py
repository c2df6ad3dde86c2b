"""On what to measure here."""

from __future__ import annotations

import importlib
import os
from typing import Any

from perfdoc.peak.measure import PeakError, Setting


def setting_here(ranks: int | None = None) -> Setting:
    """All GPUs, or so many of them; without a GPU one rank on the CPU, or so many at once.

    Raises PeakError without PyTorch, and where there are fewer GPUs.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise PeakError(
            "measuring needs torch, which is not installed. Install PyTorch for your machine first, then: "
            "pip install 'perfdoc[train]'"
        ) from error
    if not torch.cuda.is_available():
        return Setting(kind="cpu", ranks=ranks or 1)
    devices = int(torch.cuda.device_count())
    if ranks is not None and ranks > devices:
        raise PeakError(f"--ranks {ranks}: PyTorch sees {devices} GPUs here.")
    return Setting(kind="cuda", ranks=ranks or devices)


def ranks_here(counted: int | None) -> int:
    """Ranks that torchrun starts on this machine. counted: as the words say; None where torchrun counts
    devices itself."""
    if counted is not None:
        return counted
    torch: Any = importlib.import_module("torch")
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else os.cpu_count() or 1
