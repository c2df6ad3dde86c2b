"""What is known of a GPU by its name: the table gpus.yaml, read and checked once.

A family is known by the beginning of a name, rates only by the whole of it.
"""

import threading
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from perfdoc.kept import table
from perfdoc.patterns import pattern_of

Nvidias = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell"]
Architecture = Literal[Nvidias, "cdna", "cdna2", "cdna3", "cdna4", "xe_hpc"]
Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4"]
"""What a GEMM multiplies; tf32 is fp32 on tensor cores."""
_FILE = Path(__file__).resolve().with_name("gpus.yaml")
_LONGEST_NAME = 100
_MAKER = pattern_of(r"(?i)^(NVIDIA|Tesla|AMD|Intel(\(R\))?)\s+")
_FORMATS: dict[Architecture, tuple[str, ...]] = {
    "volta": ("fp16",),
    "turing": ("fp16",),
    "ampere": ("fp16", "bf16", "tf32"),
    "ada": ("fp16", "bf16", "tf32", "fp8"),
    "hopper": ("fp16", "bf16", "tf32", "fp8"),
    "blackwell": ("fp16", "bf16", "tf32", "fp8", "fp4"),
    "cdna": ("fp16", "bf16"),
    "cdna2": ("fp16", "bf16"),
    "cdna3": ("fp16", "bf16", "fp8"),
    "cdna4": ("fp16", "bf16", "fp8", "fp4"),
    "xe_hpc": ("fp16", "bf16", "tf32"),
}
"""What the tensor cores of a generation multiply (AMD's matrix cores, Intel's XMX), as PyTorch can ask for
it: not the TF32 of CDNA 3, which its libraries leave off."""
_AMD, _INTEL = ("cdna", "cdna2", "cdna3", "cdna4"), ("xe_hpc",)


class GpuFamily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all chips of a name have in common."""

    names: str
    architecture: Architecture
    nvlink_domain: int | None = None
    """GPUs of an NVLink domain in the usual server; None if servers differ (bridges, partly filled racks).
    1: no NVLink."""
    grace: bool = False
    """Whether its CPU is a Grace, over NVLink-C2C."""
    over_fp32: float
    """How many times as fast 16-bit tensor cores are, accumulating in FP32, as CUDA cores in FP32."""
    over_fp64: float | None = None
    """How many times as fast CUDA cores are in FP32 as the faster units in FP64; None if not known."""

    @property
    def vendor(self) -> Literal["nvidia", "amd", "intel"]:
        """Who makes it."""
        return "amd" if self.architecture in _AMD else "intel" if self.architecture in _INTEL else "nvidia"

    def multiplies(self, number_format: str) -> bool:
        """Whether its tensor cores multiply fp16, bf16, tf32, fp8 or fp4."""
        return number_format in _FORMATS[self.architecture]

    @property
    def fp8(self) -> bool:
        """Whether its tensor cores support FP8."""
        return self.multiplies("fp8")

    @property
    def nvls(self) -> bool:
        """Whether NVLink switches can reduce (NVLS): from Hopper on, where there is NVLink."""
        return self.architecture in ("hopper", "blackwell") and self.nvlink_domain != 1

    @property
    def mxfp8(self) -> bool:
        """Whether its tensor cores support block scaling by 32 (MXFP8)."""
        return self.architecture == "blackwell"


class GpuModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rates of a whole chip, from its data sheet; what is not known is absent or None."""

    names: str
    tflops: dict[Dtype, float]
    """Dense, accumulated in FP32; 10^12 a second."""
    memory_gbps: float | None = None
    """Memory bandwidth in 10^9 bytes a second."""
    sm_count: int | None = None

    def flops(self, dtype: str) -> float | None:
        """FLOP/s of one dtype; None where it is not listed."""
        return next((tera * 1e12 for name, tera in self.tflops.items() if name == dtype), None)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    families: tuple[GpuFamily, ...]
    models: tuple[GpuModel, ...]


T = TypeVar("T", GpuFamily, GpuModel)


_READING = threading.Lock()
"""Devices are measured by several threads: msgspec crashes where two convert at once to a type new to it."""


def _table() -> _Table:
    with _READING:
        return _read()


@cache
def _read() -> _Table:
    return msgspec.convert(table(_FILE), _Table)


def _found(name: str | None, entries: tuple[T, ...]) -> T | None:
    if name is None or len(name) > _LONGEST_NAME:
        return None
    words = _MAKER.sub("", " ".join(name.split()))
    return next((entry for entry in entries if pattern_of(f"(?i:{entry.names})").fullmatch(words)), None)


@cache
def gpu_family(name: str | None) -> GpuFamily | None:
    """`NVIDIA H100 80GB HBM3` is a Hopper with 8 GPUs per NVLink domain; None for an unknown name."""
    return _found(name, _table().families)


@cache
def gpu_model(name: str | None) -> GpuModel | None:
    """`NVIDIA H100 80GB HBM3` has 132 SMs and 3350 GB/s; None for a CPU and for a name that is not known to
    the last word."""
    return _found(name, _table().models)


def named_by_size(name: str | None, sm_count: int | None) -> str | None:
    """The name, and how much of the chip a process has where it has fewer SMs than the whole one: a MIG
    instance or a partition may bear its name. No rate is known of a part.

    >>> named_by_size("NVIDIA H100 80GB HBM3", 60)
    'NVIDIA H100 80GB HBM3, 60 of 132 SMs'
    """
    model = gpu_model(name)
    if sm_count is None or model is None or model.sm_count is None or sm_count >= model.sm_count:
        return name
    return f"{name}, {sm_count} of {model.sm_count} SMs"


def peak_flops(gpu_name: str | None, dtype: str = "bf16") -> float | None:
    """Dense peak of one GPU in FLOP/s; None for a name that `gpu_model` does not know and a dtype that is not
    listed for it.

    `NVIDIA H100 80GB HBM3` is an H100 of 989e12, `NVIDIA H100 PCIe` one of 756e12.
    """
    model = gpu_model(gpu_name)
    return None if model is None else model.flops(dtype)
