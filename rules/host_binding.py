"""How processes are bound to the cores and memory beside their GPUs."""

from __future__ import annotations

from perfdoc.rules.hardware import Gpu

GPUS_PER_NODE_X86, GPUS_PER_NODE_GRACE = 4, 2
"""GPUs to a NUMA node: of an x86 server of eight GPUs and two sockets; of a Grace server with four."""


def binding(gpu: Gpu | None) -> str:
    """Words and the command's prefix: `: numactl --cpunodebind=$((SLURM_LOCALID/4)) …`, with D where it is
    not known how many GPUs share a NUMA node."""
    if gpu is None or gpu.nvlink_domain == 1 or (gpu.grace and gpu.nvlink_domain is None):
        per, which = "D", " with D GPUs to a NUMA node (nvidia-smi topo -m)"
    else:
        number = GPUS_PER_NODE_GRACE if gpu.grace else GPUS_PER_NODE_X86
        kind = "Grace servers" if gpu.grace else "x86 servers of eight GPUs and two sockets"
        per, which = str(number), f", as on {kind} (nvidia-smi topo -m shows yours)"
    node = f"$((SLURM_LOCALID/{per}))"
    return f"{which}: numactl --cpunodebind={node} --membind={node} …"
