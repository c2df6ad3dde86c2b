"""The end of a rank that failed: one line on standard error, a file with the details, and the exit code."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

CONSEQUENCES = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "gloo",
    "nccl",
    "socket timeout",
    "distnetworkerror",
)
"""Words in the errors of ranks whose peer has gone: not what a person needs to read first."""
CONSEQUENCE_DELAY_S = 2.0
"""A rank that fell with another waits this long, so that the other's error is the first on the terminal."""


def report(error: Exception, rank: int, out: Path | None) -> NoReturn:
    """Say what happened and end the process."""
    consequence = is_consequence(error)
    if consequence:
        time.sleep(CONSEQUENCE_DELAY_S)
    message = " ".join(str(error).split()) or type(error).__name__
    details = {
        "rank": rank,
        "time_ns": time.time_ns(),
        "error": type(error).__name__,
        "message": message,
        "consequence": consequence,
        "traceback": "".join(traceback.format_exception(error)),
    }
    _write_details(details, rank, out)
    if consequence:
        sys.stderr.write(f"perfdoc: rank {rank}: ended because another rank did\n")
    elif isinstance(error, ValueError):
        if rank == 0:  # every rank finds the same mistake
            sys.stderr.write(f"perfdoc: {message}\n")
    elif isinstance(error, OSError):
        sys.stderr.write(f"perfdoc: rank {rank}: {message}\n")
    else:
        sys.stderr.write(f"perfdoc: rank {rank}: {type(error).__name__}: {message}\n")
    if os.environ.get("PERFDOC_DEBUG"):
        traceback.print_exception(error)
    sys.stderr.flush()
    sys.stdout.flush()
    # Threads of the backend may wait for a peer that has gone; leave without joining them.
    os._exit(EXIT_BAD_INPUT if isinstance(error, ValueError) else EXIT_FAILED)


def is_consequence(error: BaseException) -> bool:
    """Whether an error only says that a peer has gone."""
    import torch.distributed as dist

    text = f"{type(error).__name__} {error}".lower()
    return isinstance(error, RuntimeError | dist.DistError) and any(word in text for word in CONSEQUENCES)


def first_line(error: BaseException) -> str:
    """What an error says, in one line: of a failed checkpoint, what the first rank that failed says."""
    failures = getattr(error, "failures", None)
    if failures:
        wrapped = next(iter(failures.values()))
        error = wrapped[0] if isinstance(wrapped, tuple) else wrapped
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _write_details(details: dict[str, Any], rank: int, out: Path | None) -> None:
    """errors/rank<N>.json in the run's folder, the end in run.json, and the file of torchrun's summary."""
    try:
        if out is not None and out.is_dir():
            (out / "errors").mkdir(exist_ok=True)
            (out / "errors" / f"rank{rank}.json").write_text(json.dumps(details) + "\n", encoding="utf-8")
            if not details["consequence"] and (out / "run.json").is_file():
                from perfdoc.profiling.run_directory import RunDirectory

                RunDirectory.open(out).end("failed", f"rank {rank}: {details['message']}")
        elastic = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if elastic and not details["consequence"]:  # torchrun's summary then names the cause
            extra = {"py_callstack": details["traceback"], "timestamp": str(int(time.time()))}
            message = {"message": details["message"], "extraInfo": extra}
            Path(elastic).write_text(json.dumps({"message": message}), encoding="utf-8")
    except (OSError, ValueError):
        return  # a full disk is one of the errors to report; standard error still has it
