"""Dense tensor peaks of GPUs by name and dtype, without sparsity.

Sources: torchtitan's and verl's tables and the vendors' sheets; where they disagree, what most of them say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_TFLOPS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "A100": {"bf16": 312},
        "A800": {"bf16": 312},
        "H100": {"bf16": 989, "fp8": 1979},
        "H100 NVL": {"bf16": 835, "fp8": 1671},
        "H100 PCIe": {"bf16": 756, "fp8": 1513},
        "H800": {"bf16": 989, "fp8": 1979},
        "H200": {"bf16": 989, "fp8": 1979},
        "GH200": {"bf16": 989, "fp8": 1979},
        "H20": {"bf16": 148, "fp8": 296},
        "B200": {"bf16": 2250, "fp8": 4500},
        "B300": {"bf16": 2250, "fp8": 4500},
        "GB200": {"bf16": 2500, "fp8": 5000},
        "GB300": {"bf16": 2500, "fp8": 5000},
        "L40S": {"bf16": 362, "fp8": 733},
        "RTX 4090": {"bf16": 165, "fp8": 330},
        "RTX PRO 6000 Blackwell": {"bf16": 504, "fp8": 1008},
    }
)
"""Teraflop/s. fp16 runs at the rate of bf16 on all of these."""


def peak_flops(gpu_name: str | None, dtype: str = "bf16") -> float | None:
    """Dense peak of one GPU in FLOP/s; None for a CPU, an unknown name, or a dtype that is not listed.

    `NVIDIA H100 80GB HBM3` is an H100, `NVIDIA H100 PCIe` is not the same; an `RTX A1000` is no A100.
    """
    if gpu_name is None:
        return None
    found = [n for n in _TFLOPS if re.search(rf"(?<![A-Za-z0-9]){re.escape(n)}(?![0-9])", gpu_name)]
    if not found:
        return None
    teraflops = _TFLOPS[max(found, key=len)].get("bf16" if dtype == "fp16" else dtype)
    return None if teraflops is None else teraflops * 1e12
