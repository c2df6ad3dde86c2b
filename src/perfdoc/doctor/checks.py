"""The checks of `perfdoc doctor`: each looks at one thing and says what to do about it."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement as Parsed
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.nsys.command import OVERRIDE, find_nsys, nvtx_trouble
from perfdoc.results.figures import size

EXTRAS = ("", "train", "te", "dask")
"""Those that are looked at, the base install first."""


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One package that perfdoc needs."""

    name: str
    range: str
    """Such as `>=0.16.1,<0.17`; empty for any version."""
    extra: str
    """The extra that needs it; empty for the base install."""


def requirements() -> list[Requirement] | None:
    """Those of the base install and of EXTRAS; None where perfdoc has no metadata (not installed)."""
    try:
        lines = importlib.metadata.requires("perfdoc") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    found = []
    for parsed in map(Parsed, lines):
        for extra in EXTRAS:
            if parsed.marker is None or parsed.marker.evaluate({"extra": extra}):
                found.append(Requirement(name=parsed.name, range=str(parsed.specifier), extra=extra))
                break
    return found


def installed(name: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def fits(version: str, wanted: str) -> bool:
    """Whether a version lies in a range; one that is none lies in none.

    >>> fits("2.13.0+cpu", ">=2.11"), fits("0.17.0", ">=0.16.1,<0.17")
    (True, False)
    """
    try:
        return not wanted or SpecifierSet(wanted).contains(version, prereleases=True)
    except InvalidVersion:
        return False


State = Literal["ok", "warn", "fail"]
MIN_PYTHON = (3, 11)
SHM_BYTES = 1 << 30
"""Less shared memory than this stops data-loader workers and NCCL; containers have 64 MiB unless told."""
DISK_BYTES = 1 << 30
PARANOID = 2
"""kernel.perf_event_paranoid above this keeps nsys from sampling CPUs."""
TRANSFORMER_ENGINE = "transformer-engine"
DASK = "distributed"
INSTALL = {"": "pip install perfdoc", "train": "pip install 'perfdoc[train]'"}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at. `warn`: something is less good, and both `run` and `analyze` work."""

    name: str
    state: State
    found: str
    remedy: str = ""
    needed_by: Sequence[str] = ()
    """Of `analyze` and `run`, what does not work where it fails."""


def all_checks(looks: Sequence[Callable[[], list[Check]]] | None = None) -> list[Check]:
    """Everything, in the order of reading. What cannot be looked at is a warning, and hides nothing else."""
    found: list[Check] = []
    for look in LOOKS if looks is None else looks:
        try:
            found += look()
        except Exception as error:  # noqa: BLE001 - one thing that cannot be looked at hides no other
            name = look.__name__.strip("_").replace("_", " ")
            said = f"cannot be looked at: {type(error).__name__}: {error}"
            found.append(Check(name=name, state="warn", found=said))
    return found


def _python() -> list[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info[:2] >= MIN_PYTHON
    return [
        Check(
            name="python",
            state="ok" if good else "fail",
            found=version,
            remedy="" if good else "Use Python 3.11 or later.",
            needed_by=("analyze", "run"),
        )
    ]


def _packages() -> list[Check]:
    """Every package of the base install and of the trainer."""
    wanted = requirements()
    if wanted is None:
        return [
            Check(
                name="packages",
                state="warn",
                found="perfdoc is not installed, so the packages it needs are unknown",
                remedy="Install it: pip install -e '.[train]'",
            )
        ]
    return [package(r) for r in wanted if r.extra in INSTALL]


def package(wanted: Requirement) -> Check:
    """One package. Missing or out of range stops what needs it."""
    needed_by = ("run",) if wanted.extra else ("analyze", "run")
    version = installed(wanted.name)
    span = f" (needs {wanted.range})" if wanted.range else ""
    if version is None:
        state: State = "fail"
        found, remedy = f"not installed{span}", f"{INSTALL[wanted.extra]}"
    elif not fits(version, wanted.range):
        state, found = "fail", f"{version}{span}"
        remedy = f"pip install '{wanted.name}{wanted.range}'"
    else:
        state, found, remedy = "ok", version, ""
    return Check(name=wanted.name, state=state, found=found, remedy=remedy, needed_by=needed_by)


def _transformer_engine() -> list[Check]:
    """What the trainer's layers are made of on CUDA (knob transformer_impl); without it, of PyTorch's own."""
    wanted = next((r for r in requirements() or () if r.extra == "te"), None)
    version = installed(TRANSFORMER_ENGINE)
    if version is None:
        if nvidia_driver() is None:
            return [Check(name=TRANSFORMER_ENGINE, state="ok", found="not installed; used on CUDA alone")]
        found = "not installed: on CUDA, layers are megatron-core's own; no FP8, no overlap inside TP"
        remedy = "pip install --no-build-isolation 'perfdoc[te]'"
        return [Check(name=TRANSFORMER_ENGINE, state="warn", found=found, remedy=remedy)]
    if wanted is not None and not fits(version, wanted.range):
        found, remedy = (
            f"{version} (megatron-core wants {wanted.range})",
            f"pip install '{wanted.name}{wanted.range}'",
        )
        return [Check(name=TRANSFORMER_ENGINE, state="warn", found=found, remedy=remedy)]
    return [Check(name=TRANSFORMER_ENGINE, state="ok", found=version)]


def _dask() -> list[Check]:
    """What `perfdoc analyze --dask` measures with; without it, processes of this machine."""
    wanted = [r for r in requirements() or () if r.extra == "dask"]
    missing = [r.name for r in wanted if installed(r.name) is None]
    remedy = "pip install 'perfdoc[dask]'"
    if missing or installed(DASK) is None:
        return [Check(name="dask", state="ok", found=f"not installed; for analyze --dask: {remedy}")]
    for one in wanted:
        if not fits(version := installed(one.name) or "", one.range):
            found = f"{one.name} {version} (needs {one.range})"
            return [Check(name="dask", state="warn", found=found, remedy=remedy)]
    return [Check(name="dask", state="ok", found=installed(DASK) or "")]


def _cuda() -> list[Check]:
    """GPUs as PyTorch sees them, and a driver that it does not use."""
    driver = nvidia_driver()
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return [
            Check(name="cuda", state="warn", found="unknown: torch is not installed", remedy=INSTALL["train"])
        ]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        kinds = ", ".join(f"{names.count(n)} x {n}" for n in dict.fromkeys(names))
        return [Check(name="cuda", state="ok", found=f"{kinds}; CUDA {torch.version.cuda}")]
    if driver is None:
        found = "no NVIDIA driver: `perfdoc run` trains on the CPU"
        return [Check(name="cuda", state="warn", found=found, remedy="Fine without a GPU.")]
    built = "is built without CUDA" if torch.version.cuda is None else "cannot use the GPU"
    remedy = "Install PyTorch for CUDA: https://pytorch.org/get-started"
    if torch.version.cuda is not None:
        remedy = "Check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container pass the GPUs (--gpus all)."
    return [Check(name="cuda", state="warn", found=f"driver {driver}, but torch {built}", remedy=remedy)]


def nvidia_driver() -> str | None:
    """The version of the NVIDIA driver; None without one."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text(errors="replace").split()
    except OSError:
        return None
    return next((w for w in words if w[0].isdigit() and "." in w), "of unknown version")


def _nsys() -> list[Check]:
    instead = f"Install Nsight Systems, or name it in {OVERRIDE}; without it the PyTorch profiler is used."
    try:
        nsys = find_nsys()
    except CaptureError as error:
        return [Check(name="nsys", state="fail", found=error.what, remedy=error.remedy, needed_by=("run",))]
    if nsys is None:
        return [Check(name="nsys", state="warn", found="not found", remedy=instead)]
    if nsys.version is None:
        remedy = "Start it by hand (nsys --version) to see why."
        return [Check(name="nsys", state="warn", found="does not report its version", remedy=remedy)]
    if installed("nvtx") is not None and (trouble := nvtx_trouble(nsys)) is not None:
        return [Check(name="nsys", state="warn", found=trouble, remedy="pip install nvtx==0.2.11")]
    return [Check(name="nsys", state="ok", found=nsys.label)]


def _perf_events() -> list[Check]:
    path = Path("/proc/sys/kernel/perf_event_paranoid")
    try:
        level = int(path.read_text())
    except (OSError, ValueError):
        return [Check(name="perf events", state="warn", found="the kernel does not report its level")]
    return [perf_event_level(level)]


def perf_event_level(level: int) -> Check:
    """What nsys may sample at a level of kernel.perf_event_paranoid."""
    if level <= PARANOID:
        return Check(name="perf events", state="ok", found=f"level {level}: nsys may sample CPUs")
    return Check(
        name="perf events",
        state="warn",
        found=f"level {level}: nsys cannot sample CPUs; GPU, API and range traces do not need it",
        remedy="sudo sysctl kernel.perf_event_paranoid=2",
    )


def _folder() -> list[Check]:
    """Whether reports and runs can be written where the user stands, and how much room there is."""
    needed_by = ("analyze", "run")
    try:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".perfdoc-"):
            pass
    except OSError as error:
        found = f"cannot be written: {error.strerror}"
        remedy = "Go to a folder of your own, or give -o."
        return [Check(name="this folder", state="fail", found=found, remedy=remedy, needed_by=needed_by)]
    return [free_space(shutil.disk_usage(Path.cwd()).free)]


def free_space(free_bytes: int) -> Check:
    """What the room on the disk is good for."""
    short = free_bytes < DISK_BYTES
    return Check(
        name="this folder",
        state="warn" if short else "ok",
        found=f"can be written, {size(free_bytes)} free",
        remedy="Make room: captures of long runs take gigabytes." if short else "",
        needed_by=("analyze", "run"),
    )


def _shared_memory() -> list[Check]:
    try:
        return [shared_memory(shutil.disk_usage("/dev/shm").total)]
    except OSError:
        found = "there is no /dev/shm: data-loader workers may fail"
        return [Check(name="shared memory", state="warn", found=found)]


def shared_memory(total_bytes: int) -> Check:
    """Whether worker processes and NCCL have enough of it."""
    short = total_bytes < SHM_BYTES
    return Check(
        name="shared memory",
        state="warn" if short else "ok",
        found=size(total_bytes),
        remedy="In a container: docker run --ipc=host, or --shm-size=8g." if short else "",
    )


def _loopback() -> list[Check]:
    """Ranks of one machine meet at a port of it."""
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
    except OSError as error:
        found = f"no port of 127.0.0.1 can be opened: {error.strerror}"
        remedy = "torchrun needs one: look at the container's network."
        return [Check(name="loopback", state="fail", found=found, remedy=remedy, needed_by=("run",))]
    return [Check(name="loopback", state="ok", found="ports can be opened", needed_by=("run",))]


def _processors() -> list[Check]:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    return [Check(name="processors", state="ok", found=f"{count}")]


LOOKS: tuple[Callable[[], list[Check]], ...] = (
    *(
        _python,
        _packages,
        _transformer_engine,
        _dask,
        _cuda,
        _nsys,
        _perf_events,
        _folder,
        _shared_memory,
        _loopback,
        _processors,
    ),
)


def works(checks: Sequence[Check], command: str) -> bool:
    """Whether nothing that `analyze` or `run` needs has failed."""
    return not any(c.state == "fail" and command in c.needed_by for c in checks)
