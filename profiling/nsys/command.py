"""Nsight Systems as a command: where it is, the line that starts a run under it, and the export to SQLite."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.whole_file import whole_file
from perfdoc.records import dataclass

OVERRIDE = "PERFDOC_NSYS"
"""Environment variable: path of the nsys to use instead of the one on PATH."""
_ATTACHED = "NSYS_PROFILING_SESSION_ID"
"""nsys sets it in every process that it profiles."""

TRACES: Mapping[DeviceKind, str] = {"cpu": "nvtx", "cuda": "cuda,nvtx"}
"""What nsys collects. CPU sampling and context switches need rights that containers lack, and cost more;
nothing of ours reads OS-runtime calls, of which a step of `tiny` makes 2000 (and 6500 call-chain rows)."""

EVENT_TRACE = "--cuda-event-trace"
"""Rows of event records. nsys 2024.2.3 has no such option, and an unknown one ends it. NVIDIA warns that they
can make streams depend on each other that do not: a capture that changes what it measures is asked for."""
BEGUN = "perfdoc.profiling.nsys.begun"
"""Starts a program that knows nothing of perfdoc."""
LOCAL_RANK = "{LOCAL_RANK}"
"""Stands in an nsys line for the number of the rank's GPU."""


@dataclass(frozen=True, kw_only=True)
class Nsys:
    """An installed Nsight Systems."""

    path: Path
    version: tuple[int, ...] | None
    """As (2024, 2, 3); None where the program does not say."""

    @property
    def label(self) -> str:
        """`nsys 2024.2.3`."""
        return "nsys " + (".".join(map(str, self.version)) if self.version else "of unknown version")


def find_nsys(environment: Mapping[str, str] | None = None) -> Nsys | None:
    """The nsys that PERFDOC_NSYS names, else the first on PATH, else None.

    Raises TraceError where PERFDOC_NSYS names no program that runs.
    """
    environment = os.environ if environment is None else environment
    named = environment.get(OVERRIDE)
    found = shutil.which(named or "nsys", path=environment.get("PATH"))
    if found is None:
        if named:
            remedy = f"Give {OVERRIDE} the path of the nsys program, or unset it."
            raise TraceError(named, f"{OVERRIDE} names no program.", remedy)
        return None
    return Nsys(path=Path(found), version=_version(Path(found)))


def is_attached(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process runs under nsys."""
    return _ATTACHED in (os.environ if environment is None else environment)


def nvtx_trouble(nsys: Nsys, nvtx_version: str | None = None) -> str | None:
    """Why ranges of the `nvtx` package would not reach this nsys; None where nothing is known against it.

    nvtx 0.2.12 and later speak a newer payload extension, which nsys up to 2024.2.3 refuses together with
    every range (measured: nvtx 0.2.17 under nsys 2024.2.3 gives no range at all).
    """
    if nvtx_version is None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            nvtx_version = version("nvtx")
        except PackageNotFoundError:
            return None  # The ranges then come from torch, or there are none.
    numbers = tuple(int(part) for part in re.findall(r"\d+", nvtx_version)[:3])
    if nsys.version is None or numbers < (0, 2, 12) or nsys.version > (2024, 2, 3):
        return None
    return f"nvtx {nvtx_version} is incompatible with {nsys.label}: none of its ranges would be captured"


def nsys_command(
    nsys: Path | str,
    *,
    command: Sequence[str],
    output: Path | str,
    device: DeviceKind,
    gpu_metrics: bool = False,
    event_trace: bool = False,
    whole: bool = False,
    more: Sequence[str] = (),
) -> list[str]:
    """The line that runs `command` under nsys and writes `output`.nsys-rep.

    On CUDA only what lies between cudaProfilerStart and cudaProfilerStop is kept, and the program runs on
    afterwards. On a CPU there is no such call: the whole run is captured, with ranges in the window only; so
    it is on CUDA with `whole`, for programs without that call. `more`: options that replace ours.
    `output` may contain nsys's own `%q{RANK}`. `gpu_metrics` samples the counters of one GPU (SMs, links,
    memory): that of `LOCAL_RANK`, a word which perfdoc.profiling.nsys.rank puts in. `event_trace` records
    CUDA events, which prove which wait belongs to which record.
    """
    given = {word.partition("=")[0] for word in more}
    line = [str(nsys), "profile", f"--trace={TRACES[device]}", "--sample=none", "--cpuctxsw=none"]
    if device == "cuda":
        if not whole:
            # By default nsys ends the session and the program with it when the range ends.
            line += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        # Else a graph is one row: its kernels, and any communication among them, are unseen.
        line.append("--cuda-graph-trace=node")
        if _takes(nsys, "profile", EVENT_TRACE):
            line.append(f"{EVENT_TRACE}={str(event_trace).lower()}")
        if gpu_metrics:
            devices = "--gpu-metrics-devices"  # 2024.2.3 has it in the singular
            known = _takes(nsys, "profile", devices)
            line.append(f"{devices if known else devices[:-1]}={LOCAL_RANK}")
    else:
        line.append("--capture-range=none")
    # Else nsys waits for helper processes that a killed rank left behind, for ever.
    line.append("--wait=primary")
    line = [word for word in line if word.partition("=")[0] not in given] + list(more)
    return [*line, "--kill=none", "--force-overwrite=false", f"--output={output}", *command]


def nsys_per_rank(
    under: Sequence[str],
    *,
    launcher: Sequence[str],
    program: Sequence[str],
    ranks: Iterable[int] | None,
    logs: Path | str,
    notes_begin: bool = True,
) -> list[str]:
    """The launcher's line that starts each rank under an nsys of its own.

    `under` is nsys with its options, `launcher` torchrun with its arguments (empty: the line is one rank),
    `program` what each rank runs (`python -m ...`). Ranks outside `ranks` (None: all) run without nsys. What
    nsys and the program write on standard output goes to `logs`/rank<N>.txt, because nsys draws progress bars
    there. notes_begin: whether the program itself tells the launch that it has begun, as the trainer does.
    """
    under = [*under] if notes_begin else [*under, sys.executable, "-m", BEGUN]
    chosen = "all" if ranks is None else ",".join(str(rank) for rank in sorted(set(ranks)))
    starter = [sys.executable, "-m", "perfdoc.profiling.nsys.rank", chosen, str(logs), str(len(under))]
    return [*launcher, *(["--no-python"] if launcher else []), *starter, *under, *program]


def export_sqlite(nsys: Path | str, report: Path, target: Path, *, timeout_s: float = 1800.0) -> Path:
    """Export a .nsys-rep to SQLite; `target` appears when it is whole, and is never overwritten.

    Raises TraceError with nsys's own words where the export fails or takes longer than `timeout_s`.
    """
    if not report.is_file():
        remedy = "The run ended before nsys could write it; run again with fewer profiled steps."
        raise TraceError(report, "nsys left no report.", remedy)
    line = [str(nsys), "export", "--type=sqlite", "--lazy=false", "--quiet=true", "--force-overwrite=true"]
    if _takes(nsys, "export", "--include-blobs"):
        line.append("--include-blobs=true")  # NCCL's payloads; older versions have no such option.
    try:
        with whole_file(target) as part:
            done = subprocess.run(
                [*line, f"--output={part}", str(report)], capture_output=True, text=True, timeout=timeout_s
            )
            if done.returncode or not part.is_file():
                last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
                what = f"nsys export ended with code {done.returncode}: {last.rstrip('.')}."
                raise TraceError(report, what, "A report is read by the nsys that wrote it or a newer one.")
            if _is_cut_off(part):  # nsys ends with 0 on a full disk
                remedy = "Make room and analyse again: the report is whole."
                raise TraceError(report, "nsys export was cut off, as by a full disk.", remedy)
    except subprocess.TimeoutExpired:
        remedy = "Profile fewer steps."
        raise TraceError(report, f"nsys export took longer than {timeout_s:.0f} s.", remedy) from None
    return target


def _is_cut_off(database: Path) -> bool:
    """Whether an SQLite file is shorter than its header says, or has none.

    The header: 16 bytes of name, at 16 the page size (1 for 65536), at 28 the number of pages, big-endian.
    """
    with database.open("rb") as file:
        header = file.read(32)
    if not header.startswith(b"SQLite format 3\0") or len(header) < 32:
        return True
    page_bytes = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    return database.stat().st_size < pages * (65536 if page_bytes == 1 else page_bytes)


@cache
def _takes(nsys: Path | str, verb: str, option: str) -> bool:
    """Whether this nsys has an option. One that cannot be asked counts as new."""
    try:
        shown = subprocess.run([str(nsys), verb, "--help"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return re.search(rf"{re.escape(option)}\b(?!-)", shown.stdout + shown.stderr) is not None


def _version(path: Path) -> tuple[int, ...] | None:
    try:
        shown = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\b(20\d\d)\.(\d+)\.(\d+)", shown.stdout)
    return tuple(int(part) for part in found.groups()) if found else None
