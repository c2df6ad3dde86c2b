"""What a bug report needs of a machine, and nothing of whose machine it is: no host, user, path or secret."""

import importlib
import platform
import re
from typing import Any

from perfdoc.doctor.checks import installed, nvidia_driver, requirements
from perfdoc.profiling.environment import cpu_count, cpu_name, knob_variables, memory_bytes, versions
from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.nsys.command import find_nsys
from perfdoc.version import __version__

_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""CUDA_VISIBLE_DEVICES may name a GPU by its own."""


def machine() -> dict[str, Any]:
    """Versions, hardware, and the environment variables that are knobs; None is not known or not there."""
    return {
        "perfdoc": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "cpu": cpu_name(),
        "cpu_count": cpu_count(),
        "memory_bytes": memory_bytes(),
        "gpus": _gpus(),
        "nvidia_driver": nvidia_driver(),
        "nsys": _nsys(),
        "packages": _packages(),
        "knobs": {k: _UUID.sub("…", v) for k, v in knob_variables().items()},
    }


def _packages() -> dict[str, str | None]:
    wanted = {r.name: installed(r.name) for r in requirements() or ()}
    found: dict[str, str | None] = {**wanted, **{k: v for k, v in versions().items() if k != "python"}}
    return dict(sorted(found.items()))


def _gpus() -> list[str] | None:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _nsys() -> str | None:
    """Its version; where it lies is nobody's business."""
    try:
        nsys = find_nsys()
    except TraceError:
        return None
    return nsys.label if nsys else None
