"""`perfdoc capture`: check everything before the job starts, and put its line together."""

import importlib
import math
import shlex
import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

from perfdoc.capture.asked import Asked
from perfdoc.doctor.checks import installed
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.nsys.collect import LOGS, unfinished_folder
from perfdoc.profiling.nsys.command import Nsys, find_nsys, nsys_command, nsys_per_rank, nvtx_trouble
from perfdoc.profiling.own.asked_window import AskedWindow, window_of_steps
from perfdoc.profiling.process import local_rank, started_rank
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.records import dataclass
from perfdoc.results.figures import plural, size
from perfdoc.run.torchrun import Job, other_launcher, ranks_of, read_job

GET_NSYS = (
    "get Nsight Systems from https://developer.nvidia.com/nsight-systems (or: apt-get install "
    "nsight-systems-cli, of NVIDIA's repository) and put nsys on PATH, or name it in PERFDOC_NSYS"
)
_STEP = "`for batch in perfdoc.profiling.steps(loader):`"
_SCHEDULER_OK = "CPU Profiling Environment (process-tree): OK"
_GPU_FILES = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Of NVIDIA's driver, a sandbox may show its device alone; /dev/dxg is a GPU of Windows, within WSL."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A capture that was checked and not yet started."""

    command: list[str]
    program: list[str]
    """The job as it was given."""
    run: RunDirectory
    """Not made yet."""
    nsys: Nsys | None
    """None for the PyTorch profiler."""
    window: AskedWindow | None
    ranks: frozenset[int] | None
    """None for all."""
    rank: int | None
    """The one rank that this command is; None where torchrun starts them."""
    own: int | None
    """The rank whose files alone are this command's, other commands being the other ranks; None where all in
    the folder are."""
    left_out: bool
    """Whether this rank is not one of those to capture."""
    notes: tuple[str, ...]
    """What the user is to know before the job starts, a line each."""

    @property
    def one_of_several(self) -> bool:
        """Whether other commands are the other ranks."""
        return self.own is not None


def plan(asked: Asked) -> Plan:
    """Check and put together. Raises ValueError, one line."""
    job = read_job(asked.words)
    if outer := other_launcher(job):
        raise UserError(
            f"{outer[0]} starts the ranks: put it in front: {' '.join(outer)} … perfdoc capture -o DIR -- "
            "python train.py"
        )
    steps, ranks = _steps(asked.steps), ranks_of("--ranks", asked.ranks)
    device = _device()
    started = started_rank() if not job.launcher else None
    rank = None if job.launcher else (started[0] if started else 0)
    own = rank if started is not None and started[1] > 1 else None
    left_out = rank is not None and ranks is not None and rank not in ranks
    nsys = _nsys(asked, steps)
    if asked.gpu_metrics and device == "cuda" and own is not None and local_rank() is None:
        raise UserError(
            "--gpu-metrics: which GPU is this rank's? Neither LOCAL_RANK nor a variable of SLURM's or "
            "Open MPI's says it: set LOCAL_RANK."
        )
    folder = _folder(asked.output, shared=own is not None, own=None if left_out else own)
    chosen = None if ranks is None else tuple(sorted(ranks))
    window = None
    if steps is not None:
        within = window_of_steps(steps, chosen)
        window = AskedWindow(
            start=within.start,
            steps=within.steps,
            ranks=chosen,
            profiler="torch" if nsys is None else "nsys",
            device=device,
            folder=str(folder.absolute()),
        )
    notes: list[str] = []
    if nsys is None and asked.profiler == "auto":
        notes.append("nsys is not installed: PyTorch's profiler captures")
    command = list(asked.words)
    if nsys is not None:
        under = nsys_command(
            nsys.path,
            command=(),
            output=unfinished_folder(RunDirectory(folder.absolute()), own)
            / f"rank{'%q{RANK}' if rank is None else rank}",
            device=device,
            gpu_metrics=asked.gpu_metrics,
            whole=window is None and not asked.own_range,
            more=_more(asked, nsys, notes),
        )
        command = nsys_per_rank(
            under,
            launcher=job.launcher,
            program=job.program,
            ranks=None if rank is not None else ranks,
            logs=(folder / LOGS).absolute(),
            notes_begin=False,
        )
    notes.append(_scope(folder, _captured(job, ranks, rank), asked, window, device))
    return Plan(
        command=command,
        program=list(asked.words),
        run=RunDirectory(folder),
        nsys=nsys,
        window=window,
        ranks=ranks,
        rank=rank,
        own=own,
        left_out=left_out,
        notes=tuple(notes),
    )


def _device() -> DeviceKind:
    """cuda where the driver is seen, or PyTorch uses it; where both are wrong CUDA is not traced."""
    if any(path.exists() for path in _GPU_FILES):
        return "cuda"
    if "+cpu" in (installed("torch") or "+cpu"):
        return "cpu"
    torch: Any = importlib.import_module("torch")
    return "cuda" if torch.cuda.is_available() else "cpu"


def _nsys(asked: Asked, steps: tuple[int, int] | None) -> Nsys | None:
    found = None if asked.profiler == "torch" else find_nsys()
    if found is None and asked.profiler == "nsys":
        raise UserError(f"nsys is not installed: {GET_NSYS}. Without it: {_with_torch(asked)}")
    if found is None:
        of_nsys = {
            "--delay": asked.delay_s is not None,
            "--duration": asked.duration_s is not None,
            "--own-range": asked.own_range,
            "--gpu-metrics": asked.gpu_metrics,
        }
        given = [option for option, there in of_nsys.items() if there]
        if steps is None or given:
            without = "" if asked.profiler == "torch" else f", which is not installed: {GET_NSYS}"
            what = f"{' and '.join(given)}: of nsys" if given else "a capture without --steps takes nsys"
            raise UserError(f"{what}{without}. Without nsys: {_with_torch(asked)}")
        return None
    timed = asked.delay_s is not None or asked.duration_s is not None
    if (steps is not None) + timed + asked.own_range > 1:
        raise UserError("one window: --steps, or --delay and --duration, or --own-range.")
    if steps is not None and (trouble := nvtx_trouble(found)) is not None:
        raise UserError(f"{trouble}. Install nvtx==0.2.11, or use a newer nsys.")
    return found


def _with_torch(asked: Asked) -> str:
    """What captures the same job with PyTorch's profiler: the line to paste, and what the script needs."""
    words = ["perfdoc", "capture", "--profiler", "torch", "--steps", asked.steps or "10:14"]
    words += ["--ranks", asked.ranks] if asked.ranks else []
    words += ["-o", str(asked.output)] if asked.output else []
    line = shlex.join([*words, "--", *asked.words])
    return f"{line}, with {_STEP} in the script (docs/own_trainer.md)."


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, colon, end = text.partition(":")
    if not colon or not all(word.isdecimal() and len(word) < 10 for word in (first, end)):
        raise UserError(f"--steps {text!r}: give FIRST:END, such as 10:14 for the steps 10 to 13.")
    return int(first), int(end)


def _folder(output: Path | None, *, shared: bool, own: int | None) -> Path:
    """shared: whether other commands write to it too; own: the rank of which nothing may be there then."""
    if output is None:
        if shared:
            raise UserError("each rank runs this command: give all of them one folder with -o DIR.")
        return Path(f"capture-{datetime.now():%Y%m%d-%H%M%S}")
    if output.exists() and not output.is_dir():
        raise UserError(f"{output}: is a file. Give a folder with -o.")
    if not shared and output.is_dir() and any(output.iterdir()):
        raise UserError(f"{output}: is not empty. Give another folder: a capture overwrites nothing.")
    if own is not None:
        run = RunDirectory(output)
        for folder in (output / "traces", unfinished_folder(run, own)):
            if there := next(folder.glob(f"rank{own}.*"), None):
                raise UserError(
                    f"{there}: is of an earlier capture. Give another folder: a capture overwrites nothing."
                )
    return output


def _more(asked: Asked, nsys: Nsys, notes: list[str]) -> list[str]:
    """nsys's options beside ours."""
    found = []
    if asked.delay_s is not None:
        found.append(f"--delay={math.ceil(asked.delay_s)}")
    if asked.duration_s is not None:
        found.append(f"--duration={math.ceil(asked.duration_s)}")
    if asked.scheduler:
        if _SCHEDULER_OK in _status(nsys):
            found.append("--cpuctxsw=process-tree")
        else:
            notes.append(
                "without the scheduler's rows: this machine does not allow them (nsys status --environment)"
            )
    return found


def _status(nsys: Nsys) -> str:
    try:
        line = [str(nsys.path), "status", "--environment"]
        return subprocess.run(line, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _captured(job: Job, ranks: frozenset[int] | None, rank: int | None) -> int:
    """Ranks that leave a trace on this machine, as far as the command says; at least 1."""
    here = 1 if rank is not None else (job.ranks_here or 8)
    return max(1, here if ranks is None else min(here, len(ranks)))


def _scope(folder: Path, ranks: int, asked: Asked, window: AskedWindow | None, device: DeviceKind) -> str:
    """What is captured, where, and how much room there is."""
    parent = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = f"{size(shutil.disk_usage(parent).free)} free"
    if window is not None:
        last = window.start + window.steps - 1
        span = f"step {window.start}" if window.steps == 1 else f"steps {window.start} to {last}"
    elif asked.duration_s is not None:
        span = f"{asked.duration_s:g} s"
    else:
        what = "the job's own range" if asked.own_range else "the whole job"
        return f"captures {what}, of unknown size ({free}): bound it with --steps or --duration"
    if window is not None and window.profiler == "nsys" and device == "cpu":
        # Nothing tells nsys of a window without a GPU.
        return f"captures the whole job, with ranges in {span}, of unknown size ({free}): make it short"
    return f"captures {span} of {plural(ranks, 'rank')} in {folder} ({free})"
