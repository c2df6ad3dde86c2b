"""The user's command: where torchrun's own words end."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from perfdoc.records import dataclass
from perfdoc.run.torchrun import TorchrunError

_MODULE = "torch.distributed.run"
_OLD_MODULE = "torch.distributed.launch"
# Both put python before their program, and deepspeed --local_rank behind it.
_ACCELERATE = ("accelerate", "launch", "--no_python")
_DEEPSPEED = ("deepspeed", "--no_python", "--no_local_rank")
_OTHER_LAUNCHERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("accelerate", "accelerate-launch", "accelerate.commands.launch"), _ACCELERATE),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), _DEEPSPEED),
    **{name: (name,) for name in ("mpiexec", "mpirun", "srun")},
}
"""Launchers of another kind, by program or module, as they stand in front of `perfdoc capture`."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The command in two parts."""

    launcher: tuple[str, ...]
    """torchrun with its arguments; empty for a command that is one process."""
    program: tuple[str, ...]
    """What each rank runs."""
    ranks_here: int | None
    """That this machine starts; None where torchrun counts devices, or several machines take part."""


def read_job(words: Sequence[str]) -> Job:
    """Take a command apart. Raises TorchrunError where torchrun would refuse it, or there is none."""
    if not words:
        raise TorchrunError("no command: perfdoc capture -- torchrun --nproc-per-node 8 train.py …")
    start = _launcher_words(words)
    if start == 0:
        return Job(launcher=(), program=tuple(words), ranks_here=1)
    try:
        from torch.distributed.run import get_args_parser
    except ImportError as error:
        raise TorchrunError(
            "torch is not installed where perfdoc is, and takes torchrun's arguments apart: install perfdoc "
            "beside the job's torch, or behind the launcher (docs/own_trainer.md)."
        ) from error

    parser = get_args_parser()
    parser.error = _refuse
    given = parser.parse_args(list(words[start:]))
    rest = [given.training_script, *given.training_script_args]
    options = list(words[start : len(words) - len(rest)])
    if options and options[-1] == "--":
        options.pop()
    per_node, nodes = str(given.nproc_per_node), str(given.nnodes)
    here = int(per_node) if per_node.isdecimal() and nodes in ("1", "1:1") else None
    program = rest
    if given.module:
        program = [_python(words[0]), "-u", "-m", *rest]
        options = [word for word in options if word not in ("-m", "--module")]
    elif not given.no_python:
        program = [_python(words[0]), "-u", *rest]
    options = [word for word in options if word not in ("--no-python", "--no_python")]
    return Job(launcher=(*words[:start], *options), program=tuple(program), ranks_here=here)


def other_launcher(job: Job) -> tuple[str, ...]:
    """The launcher of another kind that a command begins with, and the options that let `perfdoc capture`
    stand behind it; empty for none."""
    if job.launcher:
        return ()
    return _OTHER_LAUNCHERS.get(_module(job.program) or Path(job.program[0]).name, ())


def _launcher_words(words: Sequence[str]) -> int:
    """How many words are torchrun itself."""
    if Path(words[0]).name == "torchrun":
        return 1
    module = _module(words)
    if module == _OLD_MODULE:
        raise TorchrunError(
            f"{_OLD_MODULE} starts nothing but Python scripts, and so no profiler: use torchrun, and take "
            "the rank from LOCAL_RANK instead of --local-rank."
        )
    return 3 if module == _MODULE else 0


def _module(words: Sequence[str]) -> str | None:
    """What `python -m` runs."""
    is_python = Path(words[0]).name.startswith("python")
    return words[2] if is_python and list(words[1:2]) == ["-m"] and len(words) > 2 else None


def _python(launcher: str) -> str:
    """What torchrun itself takes: PYTHON_EXEC, or the interpreter that it runs in, which lies beside it."""
    if named := os.environ.get("PYTHON_EXEC"):
        return named
    found = shutil.which(launcher)
    if found is None or Path(found).name.startswith("python"):
        return found or "python"
    beside = Path(found).with_name("python")
    return str(beside) if beside.exists() else "python"


def _refuse(message: str) -> NoReturn:
    raise TorchrunError(f"torchrun: {message}.")
