"""Which rank this process is, of how many, and where it computes; without importing torch."""

import os
import sys
from collections.abc import Mapping

from perfdoc.profiling.marks import DeviceKind

_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")


def started_rank(environment: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """(rank, ranks) as torchrun, SLURM or MPI tell a process; None where none of them does."""
    environment = os.environ if environment is None else environment
    for rank, size in _RANKS:
        told = environment.get(rank, ""), environment.get(size, "")
        if all(text.isdecimal() for text in told) and int(told[0]) < int(told[1]):
            return int(told[0]), int(told[1])
    return None


def local_rank(environment: Mapping[str, str] | None = None) -> int | None:
    """This rank among those of its machine, by which it takes its GPU; 0 for a process that is the only one.

    None where there are several ranks and nobody says.
    """
    environment = os.environ if environment is None else environment
    for variable in _LOCAL_RANKS:
        if (told := environment.get(variable, "")).isdecimal():
            return int(told)
    started = started_rank(environment)
    return 0 if started is None or started[1] == 1 else None


def own_rank() -> tuple[int, int]:
    """(rank, ranks): torch.distributed's where it is initialized, else as started, else (0, 1)."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return started_rank() or (0, 1)


def own_device() -> DeviceKind:
    """`cuda` once this process uses a GPU: a machine that has one may train on its CPU all the same."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return "cpu"
    return "cuda" if torch.cuda.is_initialized() else "cpu"
