"""Peaks by the names that drivers give; anything that is not known to the last word has none."""

from __future__ import annotations

import pytest

from perfdoc.profiling.flops import peak_flops


@pytest.mark.parametrize(
    ("name", "bf16_tera"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("A100-SXM4-40GB", 312),
        ("NVIDIA A800-SXM4-80GB", 312),
        ("NVIDIA H100", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100-SXM5-80GB", 989),
        ("NVIDIA H800", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100-PCIE-80GB", 756),
        ("H100 PCIE", 756),
        ("NVIDIA  H100 NVL ", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA GH200 144G HBM3e", None),
        ("NVIDIA H20", 148),
        ("NVIDIA B200", 2250),
        ("NVIDIA B300 SXM6 AC", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA GB300", 2500),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 504),
        # Other chips, and parts of chips.
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", None),
        ("NVIDIA H800 PCIe", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A100-40C", None),
        ("NVIDIA L40S-48Q", None),
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA A100 80GB PCIe (shared)", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA A10", None),
        ("NVIDIA L40", None),
        ("AMD Instinct MI300X", None),
        ("CPU", None),
        ("", None),
        ("H100 " * 1_000_000, None),
    ],
)
def test_peak_of_a_name(name: str, bf16_tera: int | None) -> None:
    expected = None if bf16_tera is None else bf16_tera * 1e12
    assert peak_flops(name) == expected
    assert peak_flops(name, "fp16") == expected


def test_a_dtype_that_is_not_listed_has_no_peak() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3", "fp8") == 1979e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp8") is None
    assert peak_flops("NVIDIA H100 80GB HBM3", "fp4") is None
    assert peak_flops(None) is None
