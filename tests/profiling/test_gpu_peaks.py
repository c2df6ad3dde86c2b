"""Peaks by the names that drivers give; anything that is not known to the last word has none."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from perfdoc.profiling import gpus
from perfdoc.profiling.gpus import gpu_family, gpu_model, peak_flops

PEAKS = {
    312: ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "A100-SXM4-40GB", "NVIDIA A800-SXM4-80GB"),
    989: ("NVIDIA H100", "NVIDIA H100 80GB HBM3", "NVIDIA H800", "NVIDIA H200", "NVIDIA GH200 144G HBM3e"),
    756: ("NVIDIA H100 PCIe", "NVIDIA H100-PCIE-80GB", "H100 PCIE"),
    835: ("NVIDIA  H100 NVL ", "NVIDIA H200 NVL"),
    2250: ("NVIDIA B200", "NVIDIA B300 SXM6 AC"),
    2500: ("NVIDIA GB200", "NVIDIA GB300"),
    148: ("NVIDIA H20",),
    125: ("NVIDIA A10",),
    121: ("NVIDIA L4",),
    71: ("NVIDIA GeForce RTX 3090",),
    209.5: ("NVIDIA GeForce RTX 5090",),
    165: ("NVIDIA GeForce RTX 4090",),
    504: ("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
    191.5: ("AMD Instinct MI250X",),
    1307: ("AMD Instinct MI300X", "AMD Instinct MI325X"),
    2517: ("AMD Instinct MI355X",),
}
OTHERS = (
    *("NVIDIA GeForce RTX 5090 D", "NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H800 PCIe"),
    *("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "NVIDIA A100-40C", "NVIDIA A100 80GB PCIe (shared)"),
    *("NVIDIA RTX A1000", "AMD Instinct MI308X", "AMD Instinct MI100", "CPU", "", "H100 " * 1_000_000),
)
"""Other chips, and parts of chips."""


def test_peak_of_a_name() -> None:
    for tera, names in PEAKS.items():
        for name in names:
            assert peak_flops(name) == peak_flops(name, "fp16") == tera * 1e12, name
    assert [name for name in OTHERS if peak_flops(name) is not None] == []


def test_tensor_cores_of_volta_and_turing_multiply_fp16_alone() -> None:
    for name, fp16 in (
        ("Tesla V100-SXM2-32GB", 125e12),
        ("Tesla V100-DGXS-32GB", 125e12),
        ("Tesla V100-PCIE-16GB", 112e12),
        ("Tesla T4", 65e12),
    ):
        assert (peak_flops(name, "fp16"), peak_flops(name, "bf16")) == (fp16, None)


def test_tensor_cores_over_fp32_agree_with_the_peaks() -> None:
    """What a family says of all its chips and slices, against the chip's own rates."""
    for name in (
        *("V100-SXM2-32GB", "T4", "A100-SXM4-80GB", "A30", "A40", "A10", "RTX A6000", "GeForce RTX 3090"),
        *("L4", "L40S", "RTX 6000 Ada Generation", "GeForce RTX 4090", "H100 80GB HBM3", "H100 PCIe"),
        *("GH200 480GB", "H20", "B200", "GB200", "GeForce RTX 5090"),
        *("Instinct MI210", "Instinct MI300X", "AMD Instinct MI355X"),
    ):
        family, fp16, fp32 = gpu_family(name), peak_flops(name, "fp16"), peak_flops(name, "fp32")
        assert family is not None
        assert fp16
        assert fp32
        assert family.over_fp32 == pytest.approx(fp16 / fp32, rel=0.1), name


def test_two_chips_of_like_names() -> None:
    for name, over in (("NVIDIA A10", 4), ("NVIDIA A10G", 2), ("NVIDIA A10G-24Q", 2), ("NVIDIA A10-24Q", 4)):
        family = gpu_family(name)
        assert family is not None
        assert (family.over_fp32, family.nvlink_domain) == (over, 1)


def test_memory_follows_the_whole_name() -> None:
    for name, gbps, sms in (  # The same chip with other memory, and on another board.
        *(("NVIDIA A100-SXM4-40GB", 1555, 108), ("NVIDIA A100-SXM4-80GB", 2039, 108)),
        *(("NVIDIA A100 80GB PCIe", 1935, 108), ("NVIDIA A100", None, 108)),
        *(("NVIDIA H100 80GB HBM3", 3350, 132), ("NVIDIA H100 PCIe", 2000, 114)),
        *(("NVIDIA H200", 4800, 132), ("NVIDIA H20-3e", None, 78), ("NVIDIA L4", 300, 58)),
    ):
        model = gpu_model(name)
        assert model is not None
        assert (model.memory_gbps, model.sm_count) == (gbps, sms), name


def test_every_entry_of_the_table_can_be_reached_and_is_plausible() -> None:
    """Tensor cores are no slower than CUDA cores, fp8 twice as fast as bf16, fp16 as fast."""
    table = yaml.safe_load((Path(gpus.__file__).with_name("gpus.yaml")).read_text(encoding="utf-8"))
    patterns = [entry["names"] for entry in table["models"]]
    assert len(patterns) == len(set(patterns)) > 40
    for entry in table["models"]:
        rates = entry["tflops"]
        assert rates.get("bf16", rates["fp16"]) == rates["fp16"], entry
        assert rates.get("tf32", rates["fp16"] / 2) == pytest.approx(rates["fp16"] / 2, rel=0.03), entry
        assert rates.get("fp8", 2 * rates["fp16"]) == pytest.approx(2 * rates["fp16"], rel=0.03), entry
        assert rates.get("fp32", 0) <= rates["fp16"], entry
        assert 100 <= entry.get("memory_gbps", 1000) <= 10_000, entry


def test_a_dtype_that_is_not_listed_has_no_peak() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3", "fp8") == 1979e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp8") is None
    assert peak_flops("NVIDIA H100 80GB HBM3", "fp4") is None
    assert peak_flops("NVIDIA B200", "fp4") == 9000e12
    assert peak_flops("AMD Instinct MI355X", "fp4") == 10066e12
    assert peak_flops(None) is None


def test_threads_that_ask_at_once_read_the_table_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two conversions to a type that is new to msgspec end the process now and then.
    asked, convert = [], msgspec.convert

    def slow(*arguments: Any, **options: Any) -> Any:
        asked.append(threading.get_ident())
        time.sleep(0.05)
        return convert(*arguments, **options)

    monkeypatch.setattr(msgspec, "convert", slow)
    gpus._read.cache_clear()
    gpus.gpu_model.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(gpus.gpu_model, ["NVIDIA H100 80GB HBM3"] * 4)]
    assert len(asked) == 1
    assert found[0] is not None
    assert all(one is found[0] for one in found)


@pytest.mark.parametrize(
    ("name", "formats"),
    [
        ("Tesla V100-SXM2-32GB", "fp16"),
        ("NVIDIA GeForce RTX 2080 Ti", "fp16"),
        ("NVIDIA A100-SXM4-80GB", "fp16 bf16 tf32"),
        ("NVIDIA GeForce RTX 4090", "fp16 bf16 tf32 fp8"),
        ("NVIDIA H100 80GB HBM3", "fp16 bf16 tf32 fp8"),
        ("NVIDIA B200", "fp16 bf16 tf32 fp8 fp4"),
        ("AMD Instinct MI210", "fp16 bf16"),
        ("AMD Instinct MI300X", "fp16 bf16 fp8"),
        ("AMD Instinct MI355X", "fp16 bf16 fp8 fp4"),
        ("Intel(R) Data Center GPU Max 1550", "fp16 bf16 tf32"),
    ],
)
def test_what_a_generation_multiplies(name: str, formats: str) -> None:
    family = gpu_family(name)
    assert family is not None
    every = ("fp16", "bf16", "tf32", "fp8", "fp4")
    assert " ".join(f for f in every if family.multiplies(f)) == formats
