"""Process groups as a capture names them: ranks as megatron-core numbers them, tensor parallelism first."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from perfdoc.profiling.marks import format_group_mark
from perfdoc.records import dataclass


class Sizes(Protocol):
    """Sizes of a job's parallel groups, wherever they are written down."""

    @property
    def tp(self) -> int: ...  # noqa: D102
    @property
    def cp(self) -> int: ...  # noqa: D102
    @property
    def dp(self) -> int: ...  # noqa: D102
    @property
    def pp(self) -> int: ...  # noqa: D102
    @property
    def ep(self) -> int: ...  # noqa: D102
    @property
    def vpp(self) -> int: ...  # noqa: D102
    def __hash__(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Group:
    """One communicator."""

    dimension: str
    """dp, tp, cp, ep, pp or other."""
    description: str
    """PyTorch's, as megatron-core gives it."""
    ranks: tuple[int, ...]
    communicator: int
    """NCCL's id, 64 bits."""
    stream: int
    """On which its blocking kernels run."""

    def mark(self) -> str:
        """The mark by which perfdoc's trainer ties the communicator to the group."""
        return format_group_mark(self.description, self.ranks, self.communicator, name=str(self.stream))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank stands in the layout."""

    tensor: int
    context: int
    data: int
    stage: int


_DESCRIPTIONS = {
    "dp": "DATA_PARALLEL_GROUP_WITH_CP",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "other": "MODEL_PARALLEL_GROUP",
    "edp": "EXPERT_DATA_PARALLEL_GROUP",
}
_DIMENSIONS = {"edp": "dp", "pp_backward": "pp"}
"""Of groups that are not named for theirs."""
_FIRST_STREAM = 20
BACKWARD = "pp_backward"


def place_of(spec: Sizes, rank: int) -> Place:
    """rank = tensor + tp * (context + cp * (data + dp * stage))."""
    rest, tensor = divmod(rank, spec.tp)
    rest, context = divmod(rest, spec.cp)
    stage, data = divmod(rest, spec.dp)
    return Place(tensor=tensor, context=context, data=data, stage=stage)


def groups_of(spec: Sizes, rank: int) -> dict[str, Group]:
    """The groups of more than one rank that a rank is a member of, by dimension.

    Messages that run beside compute in both directions need a communicator each ("pp_backward"): NCCL
    matches what two ranks send and receive on one in the order of their calls.
    """
    found = {}
    # Experts that every rank of the replicas shares have no data-parallel group of their own.
    wanted = [name for name in _DESCRIPTIONS if name != "edp" or spec.ep > 1]
    for number, name in enumerate([*wanted, *([BACKWARD] if spec.vpp > 1 else [])]):
        dimension = _DIMENSIONS.get(name, name)
        kind = dimension if name == BACKWARD else name
        members = _members(spec, kind)
        ranks = members[_key(spec, kind, rank)]
        if len(ranks) > 1:
            found[name] = Group(
                dimension=dimension,
                description=_DESCRIPTIONS[kind],
                ranks=ranks,
                # Odd multiples spread over all 64 bits: half of them do not fit a signed column.
                communicator=0x9E3779B97F4A7C15 * (1 + 2 * (ranks[0] + (number << 20))) % 2**64,
                stream=_FIRST_STREAM + number,
            )
    return found


@lru_cache(maxsize=64)
def _members(spec: Sizes, kind: str) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Ranks of every group of a kind, by what its members have in common."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(spec.tp * spec.cp * spec.dp * spec.pp):
        found.setdefault(_key(spec, kind, rank), []).append(rank)
    return {key: tuple(ranks) for key, ranks in found.items()}


def _key(spec: Sizes, kind: str, rank: int) -> tuple[int, ...]:
    """What the members of a rank's group have in common."""
    p = place_of(spec, rank)
    replica = p.context + spec.cp * p.data
    return {
        "dp": (p.tensor, p.stage),
        "tp": (p.context, p.data, p.stage),
        "cp": (p.tensor, p.data, p.stage),
        "ep": (p.tensor, replica // spec.ep, p.stage),
        "pp": (p.tensor, p.context, p.data),
        "other": (p.context, p.data),
        "edp": (p.tensor, replica % spec.ep, p.stage),
    }[kind]
