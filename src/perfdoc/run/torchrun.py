"""torchrun's arguments: which machines and ranks they ask for, what has to be added, and where they end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from perfdoc.profiling.errors import UserError
from perfdoc.records import dataclass


@dataclass(frozen=True, kw_only=True)
class TorchrunArguments:
    """What torchrun was asked for, with its own defaults and PET_... variables."""

    words: tuple[str, ...]
    """As given."""
    nodes: int | None
    """Machines; None where a range is asked for."""
    ranks_per_node: int | None
    """None: not given, or torchrun counts devices (`auto`, `gpu`, `cpu`)."""
    counts_devices: bool
    """Whether torchrun is to count."""
    meets: bool
    """Whether it says where the machines meet, or that they need not."""
    names_address: bool
    """Whether it says by which address other ranks find this machine."""

    @property
    def several_nodes(self) -> bool:
        """Whether other machines take part."""
        return self.nodes != 1

    @property
    def world_size(self) -> int | None:
        """Ranks over all machines; None where the words do not say."""
        if self.nodes is None or self.ranks_per_node is None:
            return None
        return self.nodes * self.ranks_per_node

    def completed(self, default_world_size: int) -> tuple[str, ...]:
        """The words, with the number of ranks and the meeting place where they say neither.

        Raises UserError where `default_world_size` ranks cannot be divided over the machines.
        """
        added = []
        if self.nodes == 1 and not self.meets:
            added.append("--standalone")
        if self.nodes == 1 and not self.names_address:
            # Else ranks look for rank 0 by this machine's own name, for ever where nobody resolves it.
            added.append("--local-addr=127.0.0.1")
        if self.ranks_per_node is None and not self.counts_devices:
            if self.nodes is None or default_world_size % self.nodes:
                machines = "a range of" if self.nodes is None else str(self.nodes)
                raise UserError(
                    f"--nnodes: the configuration's {default_world_size} ranks cannot be divided over "
                    f"{machines} machines; give --nproc-per-node."
                )
            added.append(f"--nproc-per-node={default_world_size // self.nodes}")
        return (*added, *self.words)


def read_torchrun(words: Sequence[str]) -> TorchrunArguments:
    """Read the arguments as torchrun itself does. Raises UserError with its own words."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    parser.error = _refuse  # it would print a page and end the process
    given = parser.parse_args([*words, "program"])
    if given.training_script != "program":
        raise UserError(
            f"{given.training_script!r}: is not an argument of torchrun; overrides (key=value) go before --."
        )
    counted = given.nproc_per_node in ("auto", "gpu", "cpu", "xpu")
    # Its default, 1, cannot tell an argument that was given from one that was not.
    explicit = "PET_NPROC_PER_NODE" in os.environ or _names(words, "nproc")
    per_node = None if counted or not explicit else _positive("--nproc-per-node", given.nproc_per_node)
    return TorchrunArguments(
        words=tuple(words),
        nodes=_nodes(given.nnodes),
        ranks_per_node=per_node,
        counts_devices=counted,
        meets=bool(
            given.standalone or given.rdzv_endpoint or given.master_port or given.rdzv_backend != "static"
        ),
        names_address=bool(given.local_addr),
    )


def ranks_of(option: str, text: str | None) -> frozenset[int] | None:
    """`0,8` → those ranks; None where none are named. Raises UserError."""
    words = [word.strip() for word in (text or "").split(",")]
    if text is not None and not all(word.isdecimal() and len(word) < 8 for word in words):
        raise UserError(f"{option} {text!r}: give numbers with commas, such as 0,8.")
    return None if text is None else frozenset(map(int, words))


def _nodes(text: str) -> int | None:
    least, _, most = str(text).partition(":")
    low = _positive("--nnodes", least)
    return low if not most or _positive("--nnodes", most) == low else None


def _positive(name: str, text: Any) -> int:
    if not str(text).isdecimal() or int(text) < 1:
        raise UserError(f"{name} {text}: give a number from 1.")
    return int(text)


def _names(words: Sequence[str], start: str) -> bool:
    """Whether an argument that begins so is among the words."""
    return any(word.lstrip("-").replace("_", "-").startswith(start) for word in words if word.startswith("-"))


def _refuse(message: str) -> NoReturn:
    if "training_script" in message:  # which the last argument took for its value
        message = "the last argument lacks its value"
    raise UserError(f"torchrun: {message}.")


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
    """Take a command apart. Raises UserError where torchrun would refuse it, or there is none."""
    if not words:
        raise UserError("no command: perfdoc capture -- torchrun --nproc-per-node 8 train.py …")
    start = _launcher_words(words)
    if start == 0:
        return Job(launcher=(), program=tuple(words), ranks_here=1)
    try:
        from torch.distributed.run import get_args_parser
    except ImportError as error:
        raise UserError(
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
        raise UserError(
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
