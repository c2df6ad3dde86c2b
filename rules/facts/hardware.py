"""Capabilities of GPUs by name, and the CPU cores to bind their ranks to."""

from perfdoc.profiling.gpus import GpuFamily, gpu_family

Gpu = GpuFamily
_FORMER = ("volta", "turing")
"""Rules were written for Ampere and later: of anything before, they know nothing."""
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


def gpu_of(name: str | None) -> Gpu | None:
    """`NVIDIA H100 80GB HBM3` is a Hopper with 8 GPUs per NVLink domain; None for an unknown name
    and for another vendor's."""
    gpu = gpu_family(name)
    return None if gpu is None or gpu.architecture in _FORMER or gpu.vendor != "nvidia" else gpu


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
