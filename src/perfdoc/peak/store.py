"""What this machine reaches, by device and software: `perfdoc peak` and `perfdoc run` measure once.

The ranks of a measurement are processes of their own, which end before any training begins: nothing of
theirs, no memory and no thread, is left in a rank that trains.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfdoc.profiling.cpu_times import cpu_times, others_frac
from perfdoc.profiling.environment import cpu_name, memory_bytes, versions
from perfdoc.profiling.errors import TraceError, UserError
from perfdoc.profiling.installation import install_command
from perfdoc.profiling.manifest import encode
from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.measured import MeasuredCeilings
from perfdoc.profiling.state_folder import state_folder
from perfdoc.profiling.whole_file import whole_file
from perfdoc.records import dataclass

LIMIT_S = 180.0
"""A measurement takes seconds; one that takes minutes is given up."""
_OTHERS_FRAC = 0.15
"""Of the machine's CPUs; less is what every system does beside."""
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR", "GLOO_LOG_LEVEL": "ERROR"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """On what to measure."""

    kind: DeviceKind
    ranks: int
    """At once, on this machine."""

    def environment(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables of the ranks: torchrun gives each of several one thread unless told otherwise."""
        found = {**QUIET, **(os.environ if given is None else given)}
        if self.ranks > 1:
            found.setdefault("OMP_NUM_THREADS", "1")
        return found


def measure(setting: Setting) -> MeasuredCeilings:
    """Measure now, for seconds. Raises UserError."""
    began = cpu_times()
    with tempfile.TemporaryDirectory(prefix="perfdoc-peak-") as name:
        folder = Path(name)
        _run(setting, folder)
        try:
            found = msgspec.json.decode((folder / "out").read_bytes(), type=MeasuredCeilings)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserError(f"the ceilings were not measured: {_said(folder)}") from error
    others = others_frac(began, cpu_times())
    if others is not None and others > _OTHERS_FRAC:
        line = f"other processes used {others:.0%} of the machine's CPUs meanwhile"
        found = msgspec.structs.replace(found, busy=(line, *found.busy))
    return found


def _run(setting: Setting, folder: Path) -> None:
    """All ranks to their end. Raises UserError."""
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(setting.ranks):
            with (folder / f"said{number}").open("wb") as said:
                ranks.append(
                    subprocess.Popen(
                        _command(setting, number, folder),
                        stdin=subprocess.DEVNULL,
                        stdout=said,
                        stderr=said,
                        env=setting.environment(),
                    )
                )
        give_up = time.monotonic() + LIMIT_S
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                raise UserError(f"the ceilings were not measured: {_said(folder)}")
            if time.monotonic() > give_up:
                raise UserError(f"the ceilings were not measured within {LIMIT_S:.0f} s")
            time.sleep(0.05)
        if any(rank.returncode for rank in ranks):
            raise UserError(f"the ceilings were not measured: {_said(folder)}")
    except OSError as error:
        raise UserError(f"the ceilings were not measured: {error.strerror}") from error
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _command(setting: Setting, rank: int, folder: Path) -> Sequence[str]:
    words = [sys.executable, "-m", "perfdoc.peak.rank", "--rank", str(rank), "--ranks", str(setting.ranks)]
    return [*words, "--kind", setting.kind, "--meet", str(folder / "meet"), "--out", str(folder / "out")]


def _said(folder: Path) -> str:
    """The last line of the first rank that said something."""
    for file in sorted(folder.glob("said*")):
        lines = file.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
        if lines:
            return lines[-1].strip()
    return "its processes ended without a word"


def setting_here(ranks: int | None = None) -> Setting:
    """All GPUs, or so many of them; without a GPU one rank on the CPU, or so many at once.

    Raises UserError without PyTorch, and where there are fewer GPUs.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise UserError(
            "measuring needs torch, which is not installed. Install PyTorch for your machine first, then: "
            f"{install_command('train')}"
        ) from error
    if not torch.cuda.is_available():
        return Setting(kind="cpu", ranks=ranks or 1)
    devices = int(torch.cuda.device_count())
    if ranks is not None and ranks > devices:
        raise UserError(f"--ranks {ranks}: PyTorch sees {devices} GPUs here.")
    return Setting(kind="cuda", ranks=ranks or devices)


def ranks_here(counted: int | None) -> int:
    """Ranks that torchrun starts on this machine. counted: as the words say; None where torchrun counts
    devices itself."""
    if counted is not None:
        return counted
    torch: Any = importlib.import_module("torch")
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else os.cpu_count() or 1


_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_USUAL_CACHE_BYTES = 32 << 20


def usable_cpus(quota: Path = _QUOTA) -> float:
    """Logical CPUs, or the share of them that a container's quota leaves: `150000 100000` are 1.5."""
    cpus = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        most, period = quota.read_text(encoding="ascii").split()
        cpus = min(cpus, float(most) / float(period))  # `max` is no number: no quota
    return max(cpus, 0.01)


def last_cache_bytes(caches: Path = _CACHES) -> int:
    """The largest cache of a CPU, as the system says; of a usual server where it says nothing."""
    found = []
    for path in caches.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = path.read_text(encoding="ascii").strip()
            found.append(int(text[:-1]) * _UNITS[text[-1]])
    return max(found, default=_USUAL_CACHE_BYTES)


def usable_memory_bytes(limit: Path = _MEMORY_LIMIT) -> int:
    """The machine's memory, or what a container may have of it; 1 GiB where the system says nothing."""
    whole = memory_bytes() or 1 << 30
    with contextlib.suppress(OSError, ValueError):
        return min(whole, int(limit.read_text(encoding="ascii")))  # `max` is no number: no limit
    return whole


METHOD = 1
"""Raised where figures of an earlier method are not to be used any more."""
MAX_BYTES = 1 << 20
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


def ceilings(
    setting: Setting, *, again: bool = False, before: Callable[[], None] | None = None
) -> tuple[MeasuredCeilings, bool]:
    """What this machine reaches, and whether it was measured just now. again: forget what is stored. before:
    called before a measurement begins.

    Raises UserError where it cannot be measured; a folder that cannot be written costs nothing but time.
    """
    path = stored_path(setting)
    if path is not None and not again and (stored := read(path)) is not None:
        return stored, False
    if before is not None:
        before()
    found = measure(setting)
    if path is not None:
        _write(path, found)
    return found, True


def stored_path(setting: Setting) -> Path | None:
    """Where the figures of this machine, its software and so many ranks lie; None without a home."""
    folder = state_folder("peak")
    if folder is None:
        return None
    conditions = msgspec.json.encode(conditions_of(setting), order="sorted")
    name = f"{setting.kind}-{setting.ranks}-{hashlib.sha256(conditions).hexdigest()[:16]}.json"
    return folder / name


def conditions_of(setting: Setting) -> Mapping[str, object]:
    """What the figures hold under: nothing else may differ where they are used again."""
    environment = setting.environment()
    known = versions()
    found: dict[str, object] = {"method": METHOD, "kind": setting.kind, "ranks": setting.ranks}
    found |= {name: known.get(name) for name in ("torch", "cuda", "cudnn", "nccl")}
    if setting.kind == "cuda":
        return found | {"devices": _gpus(), "visible": environment.get("CUDA_VISIBLE_DEVICES")}
    found |= {"device": cpu_name(), "cpus": usable_cpus()}
    return found | {name: environment.get(name) for name in _THREADS}


def _gpus() -> str | None:
    """Names, memory and driver as the driver's own program says them: this process takes no memory of a GPU
    for it. None without the program."""
    words = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def read(path: Path) -> MeasuredCeilings | None:
    """Stored figures; None where there are none that can be used, so that they are measured anew."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        return msgspec.json.decode(path.read_bytes(), type=MeasuredCeilings)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _write(path: Path, found: MeasuredCeilings) -> None:
    try:
        with whole_file(path, replace=True) as part:
            part.write_bytes(encode(found))
    except (OSError, TraceError):
        return  # it is measured again next time
