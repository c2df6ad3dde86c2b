from __future__ import annotations

import pytest

from perfdoc.rules.facts.hardware import gpu_of


@pytest.mark.parametrize(
    ("name", "architecture", "domain", "fp8"),
    [
        ("NVIDIA A100-SXM4-80GB", "ampere", 8, False),
        ("NVIDIA A100 80GB PCIe", "ampere", None, False),
        ("NVIDIA H100 80GB HBM3", "hopper", 8, True),
        ("NVIDIA H100 PCIe", "hopper", None, True),
        ("NVIDIA H100 NVL", "hopper", None, True),
        ("NVIDIA H200", "hopper", 8, True),
        ("NVIDIA H200 NVL", "hopper", None, True),
        ("NVIDIA GH200 480GB", "hopper", None, True),
        ("NVIDIA GB200", "blackwell", 72, True),
        ("NVIDIA B200", "blackwell", 8, True),
        ("NVIDIA L40S", "ada", 1, True),
        ("NVIDIA GeForce RTX 3090", "ampere", None, False),
    ],
)
def test_gpus_by_name(name: str, architecture: str, domain: int | None, fp8: bool) -> None:
    gpu = gpu_of(name)
    assert gpu is not None
    assert (gpu.architecture, gpu.nvlink_domain, gpu.fp8) == (architecture, domain, fp8)


@pytest.mark.parametrize("name", [None, "", "Tesla V100-SXM2-32GB", "x" * 101, "an H100 80GB HBM3"])
def test_what_is_not_known_is_not_guessed(name: str | None) -> None:
    assert gpu_of(name) is None
