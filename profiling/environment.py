"""What a run ran on and was started with: variables that are knobs, versions, machine, command line.

An environment holds tokens and passwords, so that only the variables named here are ever read out.
"""

import contextlib
import importlib
import os
import platform
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfdoc.profiling.manifest import Gpu


def encodable(text: str) -> str:
    r"""The text with what UTF-8 cannot say spelled out.

    >>> import os
    >>> encodable(os.fsdecode(b"a\xff.sqlite"))
    'a\\udcff.sqlite'
    """
    return text.encode("utf-8", "backslashreplace").decode()


COMMAND_VARIABLE = "PERFDOC_COMMAND"


def name_command(environment: MutableMapping[str, str], words: Sequence[str]) -> None:
    """Put the words of a command line, as the user typed them, into variables for its processes."""
    environment[COMMAND_VARIABLE] = msgspec.json.encode([encodable(word) for word in words]).decode()


def own_command() -> tuple[str, ...]:
    """The user's words: those that `perfdoc run` was started with, else those of this process itself."""
    try:
        return msgspec.json.decode(os.environ.get(COMMAND_VARIABLE, ""), type=tuple[str, ...])
    except msgspec.DecodeError:
        return tuple(encodable(word) for word in sys.orig_argv[1:])


KNOBS = tuple(Path(__file__).resolve().with_name("variables.txt").read_text(encoding="utf-8").split())
"""Variables that change how fast a run is. One with a secret, a path or a host in it does not belong here."""

PACKAGES = ("megatron-core", "msgspec", "numpy", "nvtx", "perfdoc", "torch", "transformer-engine", "triton")
MAX_VALUE = 1024
"""Longer values are cut."""


def knob_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of KNOBS that are set."""
    environment = os.environ if environment is None else environment
    return {name: encodable(environment[name][:MAX_VALUE]) for name in KNOBS if name in environment}


def versions() -> dict[str, str]:
    """Versions of Python, of PACKAGES as installed, and of CUDA, cuDNN and NCCL as torch was built with."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return found
    if torch.version.cuda is None:
        return found
    found["cuda"] = str(torch.version.cuda)
    if (cudnn := torch.backends.cudnn.version()) is not None:
        found["cudnn"] = str(cudnn)
    if torch.cuda.is_available():
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found


def cpu_name() -> str | None:
    """The processor's own name; None where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None)


def own_cpus() -> frozenset[int]:
    """Logical CPUs that this process may use; none where the system does not say."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:
        return frozenset(range(os.cpu_count() or 0))


def cpu_count() -> int | None:
    """How many they are."""
    return len(own_cpus()) or None


def shared_cores(ranks: int | None, cores: int | None) -> str | None:
    """A sentence where there are fewer cores than ranks that train on them; None else."""
    if ranks is None or cores is None or ranks <= cores:
        return None
    return (
        f"{ranks} ranks share {cores} core{'s' * (cores > 1)}: steps are slower than with a core each, and "
        "communication is mostly waiting for a turn."
    )


def memory_bytes() -> int | None:
    """Memory of the machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def own_gpu(rank: int) -> Gpu | None:
    """The current CUDA device of this process; None where there is none."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    if torch.version.cuda is None or not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(
        rank=rank,
        name=str(facts.name),
        sm_count=int(facts.multi_processor_count),
        memory_bytes=int(facts.total_memory),
        compute_capability=f"{facts.major}.{facts.minor}",
    )
