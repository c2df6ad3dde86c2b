"""torchrun's arguments behind `--`: how many machines and ranks they ask for, and what has to be added."""

import os
from collections.abc import Sequence
from typing import Any, NoReturn

from perfdoc.records import dataclass


class TorchrunError(ValueError):
    """Arguments that torchrun would refuse."""


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

        Raises TorchrunError where `default_world_size` ranks cannot be divided over the machines.
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
                raise TorchrunError(
                    f"--nnodes: the configuration's {default_world_size} ranks cannot be divided over "
                    f"{machines} machines; give --nproc-per-node."
                )
            added.append(f"--nproc-per-node={default_world_size // self.nodes}")
        return (*added, *self.words)


def read_torchrun(words: Sequence[str]) -> TorchrunArguments:
    """Read the arguments as torchrun itself does. Raises TorchrunError with its own words."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    parser.error = _refuse  # it would print a page and end the process
    given = parser.parse_args([*words, "program"])
    if given.training_script != "program":
        raise TorchrunError(
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


def _nodes(text: str) -> int | None:
    least, _, most = str(text).partition(":")
    low = _positive("--nnodes", least)
    return low if not most or _positive("--nnodes", most) == low else None


def _positive(name: str, text: Any) -> int:
    if not str(text).isdecimal() or int(text) < 1:
        raise TorchrunError(f"{name} {text}: give a number from 1.")
    return int(text)


def _names(words: Sequence[str], start: str) -> bool:
    """Whether an argument that begins so is among the words."""
    return any(word.lstrip("-").replace("_", "-").startswith(start) for word in words if word.startswith("-"))


def _refuse(message: str) -> NoReturn:
    if "training_script" in message:  # which the last argument took for its value
        message = "the last argument lacks its value"
    raise TorchrunError(f"torchrun: {message}.")
