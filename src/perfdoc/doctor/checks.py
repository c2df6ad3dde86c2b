"""The checks of `perfdoc doctor`: each looks at one thing and says what to do about it."""

import contextlib
import importlib
import importlib.metadata
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement as Parsed
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from perfdoc.profiling.environment import cpu_count
from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.installation import install_command, install_package
from perfdoc.profiling.nsys.command import OVERRIDE, find_nsys, nvtx_trouble
from perfdoc.records import dataclass
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
BOTH = ("analyze", "run")
INSTALLED_BY = ("", "train")
"""Extras whose packages are looked at, each for itself."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at. `warn`: something is less good, and both `run` and `analyze` work."""

    name: str
    state: State
    found: str
    remedy: str = ""
    needed_by: Sequence[str] = ()
    """Of `analyze` and `run`, what does not work where it fails."""


def all_checks(looks: Sequence[Callable[[], Iterable[Check]]] | None = None) -> list[Check]:
    """Everything, in the order of reading. What cannot be looked at is a warning, and hides nothing else."""
    found: list[Check] = []
    for look in LOOKS if looks is None else looks:
        try:
            found += look()
        except Exception as error:  # noqa: BLE001 - one thing that cannot be looked at hides no other
            name = look.__name__.strip("_").replace("_", " ")
            found.append(_warn(name, f"cannot be looked at: {type(error).__name__}: {error}"))
    return found


def _ok(name: str, found: str) -> Check:
    return Check(name=name, state="ok", found=found)


def _warn(name: str, found: str, remedy: str = "") -> Check:
    return Check(name=name, state="warn", found=found, remedy=remedy)


def _fail(name: str, found: str, remedy: str, *needed_by: str) -> Check:
    return Check(name=name, state="fail", found=found, remedy=remedy, needed_by=needed_by)


def _python() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info[:2] >= MIN_PYTHON
    yield _ok("python", version) if good else _fail("python", version, "Use Python 3.11 or later.", *BOTH)


def _packages() -> Iterator[Check]:
    """Every package of the base install and of the trainer."""
    wanted = requirements()
    if wanted is None:
        said = "perfdoc is not installed, so the packages it needs are unknown"
        yield _warn("packages", said, install_command("train"))
    yield from (package(r) for r in wanted or () if r.extra in INSTALLED_BY)


def package(wanted: Requirement) -> Check:
    """One package. Missing or out of range stops what needs it."""
    needed_by = ("run",) if wanted.extra else BOTH
    version = installed(wanted.name)
    span = f" (needs {wanted.range})" if wanted.range else ""
    if version is None:
        return _fail(wanted.name, f"not installed{span}", install_command(wanted.extra), *needed_by)
    if not fits(version, wanted.range):
        remedy = install_package(f"{wanted.name}{wanted.range}")
        return _fail(wanted.name, f"{version}{span}", remedy, *needed_by)
    return Check(name=wanted.name, state="ok", found=version, needed_by=needed_by)


def _transformer_engine() -> Iterator[Check]:
    """What the trainer's layers are made of on CUDA (knob transformer_impl); without it, of PyTorch's own."""
    wanted = next((r for r in requirements() or () if r.extra == "te"), None)
    version = installed(TRANSFORMER_ENGINE)
    if version is None and nvidia_driver() is None:
        yield _ok(TRANSFORMER_ENGINE, "not installed; used on CUDA alone")
    elif version is None:
        found = "not installed: on CUDA, layers are megatron-core's own; no FP8, no overlap inside TP"
        yield _warn(TRANSFORMER_ENGINE, found, f"{install_command('te')} --no-build-isolation")
    elif wanted is not None and not fits(version, wanted.range):
        found = f"{version} (megatron-core wants {wanted.range})"
        yield _warn(TRANSFORMER_ENGINE, found, install_package(f"{wanted.name}{wanted.range}"))
    else:
        yield _ok(TRANSFORMER_ENGINE, version)


def _dask() -> Iterator[Check]:
    """What `perfdoc analyze --dask` measures with; without it, processes of this machine."""
    wanted = [(r, installed(r.name)) for r in requirements() or () if r.extra == "dask"]
    remedy = install_command("dask")
    if installed(DASK) is None or any(version is None for _, version in wanted):
        yield _ok("dask", f"not installed; for analyze --dask: {remedy}")
        return
    for one, version in wanted:
        if not fits(version or "", one.range):
            yield _warn("dask", f"{one.name} {version} (needs {one.range})", remedy)
            return
    yield _ok("dask", installed(DASK) or "")


def _cuda() -> Iterator[Check]:
    """GPUs as PyTorch sees them, and a driver that it does not use."""
    driver = nvidia_driver()
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        yield _warn("cuda", "unknown: torch is not installed", install_command("train"))
        return
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        kinds = ", ".join(f"{names.count(n)} x {n}" for n in dict.fromkeys(names))
        yield _ok("cuda", f"{kinds}; CUDA {torch.version.cuda}")
    elif driver is None:
        yield _warn("cuda", "no NVIDIA driver: `perfdoc run` trains on the CPU", "Fine without a GPU.")
    elif torch.version.cuda is None:
        remedy = "Install PyTorch for CUDA: https://pytorch.org/get-started"
        yield _warn("cuda", f"driver {driver}, but torch is built without CUDA", remedy)
    else:
        remedy = "Check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container pass the GPUs (--gpus all)."
        yield _warn("cuda", f"driver {driver}, but torch cannot use the GPU", remedy)


def nvidia_driver() -> str | None:
    """The version of the NVIDIA driver; None without one."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text(errors="replace").split()
    except OSError:
        return None
    return next((w for w in words if w[0].isdigit() and "." in w), "of unknown version")


def _nsys() -> Iterator[Check]:
    try:
        nsys = find_nsys()
    except TraceError as error:
        yield _fail("nsys", error.what, error.remedy, "run")
        return
    if nsys is None:
        remedy = f"Install Nsight Systems, or name it in {OVERRIDE}; without it the PyTorch profiler is used."
        yield _warn("nsys", "not found", remedy)
    elif nsys.version is None:
        yield _warn("nsys", "does not report its version", "Start it by hand (nsys --version) to see why.")
    elif installed("nvtx") is not None and (trouble := nvtx_trouble(nsys)) is not None:
        yield _warn("nsys", trouble, install_package("nvtx==0.2.11"))
    else:
        yield _ok("nsys", nsys.label)


def _perf_events() -> Iterator[Check]:
    path = Path("/proc/sys/kernel/perf_event_paranoid")
    try:
        yield perf_event_level(int(path.read_text()))
    except (OSError, ValueError):
        yield _warn("perf events", "the kernel does not report its level")


def perf_event_level(level: int) -> Check:
    """What nsys may sample at a level of kernel.perf_event_paranoid."""
    if level <= PARANOID:
        return _ok("perf events", f"level {level}: nsys may sample CPUs")
    found = f"level {level}: nsys cannot sample CPUs; GPU, API and range traces do not need it"
    return _warn("perf events", found, "sudo sysctl kernel.perf_event_paranoid=2")


def _folder() -> Iterator[Check]:
    """Whether reports and runs can be written where the user stands, and how much room there is."""
    try:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".perfdoc-"):
            pass
    except OSError as error:
        remedy = "Go to a folder of your own, or give -o."
        yield _fail("this folder", f"cannot be written: {error.strerror}", remedy, *BOTH)
    else:
        yield free_space(shutil.disk_usage(Path.cwd()).free)


def free_space(free_bytes: int) -> Check:
    """What the room on the disk is good for."""
    found = f"can be written, {size(free_bytes)} free"
    if free_bytes < DISK_BYTES:
        return _warn("this folder", found, "Make room: captures of long runs take gigabytes.")
    return _ok("this folder", found)


def _shared_memory() -> Iterator[Check]:
    try:
        yield shared_memory(shutil.disk_usage("/dev/shm").total)
    except OSError:
        yield _warn("shared memory", "there is no /dev/shm: data-loader workers may fail")


def shared_memory(total_bytes: int) -> Check:
    """Whether worker processes and NCCL have enough of it."""
    if total_bytes < SHM_BYTES:
        remedy = "In a container: docker run --ipc=host, or --shm-size=8g."
        return _warn("shared memory", size(total_bytes), remedy)
    return _ok("shared memory", size(total_bytes))


def _loopback() -> Iterator[Check]:
    """Ranks of one machine meet at a port of it."""
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
    except OSError as error:
        found = f"no port of 127.0.0.1 can be opened: {error.strerror}"
        yield _fail("loopback", found, "torchrun needs one: look at the container's network.", "run")
    else:
        yield _ok("loopback", "ports can be opened")


_RESOLVES_S = 5.0
"""A name server out of reach answers after half a minute."""


def _host_name() -> Iterator[Check]:
    """Machines of one run find each other by name; ranks of one machine do without."""
    name = socket.gethostname()
    found: list[object] = []

    def ask() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            found.append(socket.getaddrinfo(name, None))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_RESOLVES_S)
    if found:
        yield _ok("host name", "resolves")
    else:
        remedy = "Add it to /etc/hosts. Started by hand, torchrun --standalone wants --local-addr=127.0.0.1."
        yield _warn("host name", "does not resolve: torchrun may wait for ever", remedy)


def _processors() -> Iterator[Check]:
    yield _ok("processors", f"{cpu_count() or 0}")


LOOKS: tuple[Callable[[], Iterable[Check]], ...] = (
    *(_python, _packages, _transformer_engine, _dask, _cuda, _nsys),
    *(_perf_events, _folder, _shared_memory, _loopback, _host_name, _processors),
)


def works(checks: Sequence[Check], command: str) -> bool:
    """Whether nothing that `analyze` or `run` needs has failed."""
    return not any(c.state == "fail" and command in c.needed_by for c in checks)
