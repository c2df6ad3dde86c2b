"""Dense tensor peaks of GPUs by name and dtype, without sparsity.

Sources: torchtitan's and verl's tables and the vendors' sheets; where they disagree, what most of them say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_A100 = {"bf16": 312.0}
_H100 = {"bf16": 989.0, "fp8": 1979.0}
_H100_NVL = {"bf16": 835.0, "fp8": 1671.0}
_H100_PCIE = {"bf16": 756.0, "fp8": 1513.0}
_B200 = {"bf16": 2250.0, "fp8": 4500.0}
_GB200 = {"bf16": 2500.0, "fp8": 5000.0}

_TFLOPS: tuple[tuple[str, Mapping[str, float]], ...] = (
    (r"A[18]00(-(SXM4?|PCIE))?([ -](40|80)GB)?( PCIe| Active)?", _A100),
    (r"H[18]00([ -]SXM5?)?([ -](80|96)GB)?( HBM3)?", _H100),
    (r"H100[ -]NVL([ -]94GB)?", _H100_NVL),
    (r"H100([ -]PCIe([ -]80GB)?| 80GB PCIe)", _H100_PCIE),
    (r"H200([ -]SXM)?( 141GB)?( HBM3e)?", _H100),
    (r"GH200( (96|120|144|480)GB)?( HBM3e?)?", _H100),
    (r"H20(-3e)?( (96|141)GB)?( HBM3e?)?", {"bf16": 148.0, "fp8": 296.0}),
    (r"B200( (180|192)GB)?( HBM3e)?|B300( SXM6)?( AC)?( (275|288)GB)?( HBM3e)?", _B200),
    (r"GB[23]00", _GB200),
    (r"L40S( 48GB)?", {"bf16": 362.0, "fp8": 733.0}),
    (r"(GeForce )?RTX 4090", {"bf16": 165.0, "fp8": 330.0}),
    (r"RTX PRO 6000 Blackwell( (Workstation|Server) Edition)?", {"bf16": 504.0, "fp8": 1008.0}),
)
"""Whole names, after `NVIDIA`, and teraflop/s; fp16 runs at the rate of bf16 on all of these.

A name with any other word in it is unknown: `H100 80GB HBM3 MIG 3g.40gb` is a slice, `RTX 4090 D` and
`RTX 4090 Laptop GPU` are smaller chips, `A100-40C` is a virtual share, `A100-SXM-64GB` has more SMs.
"""
_NAMES = [(re.compile(pattern, re.IGNORECASE), rates) for pattern, rates in _TFLOPS]
_LONGEST_NAME = 100


def peak_flops(gpu_name: str | None, dtype: str = "bf16") -> float | None:
    """Dense peak of one GPU in FLOP/s; None for a CPU, a dtype that is not listed, or a name that is not
    known to the last word.

    `NVIDIA H100 80GB HBM3` is an H100 of 989e12, `NVIDIA H100 PCIe` one of 756e12.
    """
    if gpu_name is None or len(gpu_name) > _LONGEST_NAME:
        return None
    name = re.sub(r"^(NVIDIA|Tesla)\s+", "", " ".join(gpu_name.split()), flags=re.IGNORECASE)
    rates = next((rates for pattern, rates in _NAMES if pattern.fullmatch(name)), {})
    teraflops = rates.get("bf16" if dtype == "fp16" else dtype)
    return None if teraflops is None else teraflops * 1e12
