"""Capabilities of GPUs by name, and the CPU cores to bind their ranks to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Architecture = Literal["ampere", "ada", "hopper", "blackwell"]


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU model."""

    architecture: Architecture
    nvlink_domain: int | None
    """GPUs of an NVLink domain in the usual server; None if servers differ (bridges, partly filled racks).
    1: no NVLink."""
    grace: bool = False
    """Whether its CPU is a Grace, over NVLink-C2C."""

    @property
    def fp8(self) -> bool:
        """Whether its tensor cores support FP8."""
        return self.architecture != "ampere"

    @property
    def nvls(self) -> bool:
        """Whether NVLink switches can reduce (NVLS): from Hopper on, where there is NVLink."""
        return self.architecture in ("hopper", "blackwell") and self.nvlink_domain != 1

    @property
    def mxfp8(self) -> bool:
        """Whether its tensor cores support block scaling by 32 (MXFP8)."""
        return self.architecture == "blackwell"


_SERVER_GPUS_MAX = 8
"""A larger domain spans several servers, so the ranks per server do not bound it."""


def job_nvlink_domain(gpu: Gpu | None, ranks_per_server: object) -> int | None:
    """GPUs of the job in one NVLink domain; None if unknown.

    The ranks per server bound it, except in racks: `GB200` with four ranks per server still has a domain
    of 72.
    """
    if gpu is None or gpu.nvlink_domain is None:
        return None
    known = isinstance(ranks_per_server, int) and ranks_per_server > 0
    if known and gpu.nvlink_domain <= _SERVER_GPUS_MAX:
        return min(gpu.nvlink_domain, int(str(ranks_per_server)))
    return gpu.nvlink_domain


_GPUS: tuple[tuple[str, Gpu], ...] = (
    (r"A[18]00-SXM4?\b.*", Gpu(architecture="ampere", nvlink_domain=8)),
    (r"A[18]00\b.*", Gpu(architecture="ampere", nvlink_domain=None)),
    (r"GH200\b.*", Gpu(architecture="hopper", nvlink_domain=None, grace=True)),
    (r"H[18]00([ -]SXM5?| 80GB HBM3)\b.*|H200( SXM)?( 141GB)?( HBM3e)?|H20\b.*",
     Gpu(architecture="hopper", nvlink_domain=8)),
    (r"H[12]00\b.*|H800\b.*", Gpu(architecture="hopper", nvlink_domain=None)),
    (r"GB[23]00\b.*", Gpu(architecture="blackwell", nvlink_domain=72, grace=True)),
    (r"B[23]00\b.*", Gpu(architecture="blackwell", nvlink_domain=8)),
    (r"RTX PRO \d+ Blackwell\b.*|(GeForce )?RTX 50\d0\b.*", Gpu(architecture="blackwell", nvlink_domain=1)),
    (r"L4\b.*|L40S?\b.*|(GeForce )?RTX 40\d0\b.*", Gpu(architecture="ada", nvlink_domain=1)),
    (r"(GeForce )?RTX 30\d0\b.*", Gpu(architecture="ampere", nvlink_domain=None)),
)  # fmt: skip
"""First match wins. Sources: the vendors' sheets; domains as DGX, HGX and NVL72 systems are built."""
_NAMES = [(re.compile(pattern, re.IGNORECASE), gpu) for pattern, gpu in _GPUS]
_LONGEST_NAME = 100


def gpu_of(name: str | None) -> Gpu | None:
    """`NVIDIA H100 80GB HBM3` is a Hopper with 8 GPUs per NVLink domain; None for an unknown name."""
    if name is None or len(name) > _LONGEST_NAME:
        return None
    words = re.sub(r"^(NVIDIA|Tesla)\s+", "", " ".join(name.split()), flags=re.IGNORECASE)
    return next((gpu for pattern, gpu in _NAMES if pattern.fullmatch(words)), None)


GPUS_PER_NODE_X86, GPUS_PER_NODE_GRACE = 4, 2
"""GPUs per NUMA node: of an x86 server with eight GPUs and two sockets; of a Grace server with four."""


def binding(gpu: Gpu | None) -> str:
    """Words and the command's prefix: `: numactl --cpunodebind=$((SLURM_LOCALID/4)) …`, with D if the GPUs
    per NUMA node are unknown."""
    if gpu is None or gpu.nvlink_domain == 1 or (gpu.grace and gpu.nvlink_domain is None):
        per, which = "D", " with D GPUs per NUMA node (nvidia-smi topo -m)"
    else:
        number = GPUS_PER_NODE_GRACE if gpu.grace else GPUS_PER_NODE_X86
        kind = "Grace servers" if gpu.grace else "x86 servers of eight GPUs and two sockets"
        per, which = str(number), f", as on {kind} (nvidia-smi topo -m shows yours)"
    node = f"$((SLURM_LOCALID/{per}))"
    return f"{which}: numactl --cpunodebind={node} --membind={node} …"
