"""Which rank of one side stands against which of the other, and when the two sides are not comparable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perfdoc.compare.diff.result import Basis
from perfdoc.compare.side import Loaded
from perfdoc.profiling.manifest import ModelShape
from perfdoc.records import dataclass
from perfdoc.results import Rank
from perfdoc.results.figures import plural

_NOT_THE_MODEL = frozenset({"name", "parameters", "sequence_length"})
"""Fields of a shape that may differ: its name, what follows from the rest, and what belongs to the batch."""


class NotComparableError(ValueError):
    """Two sides whose difference would mean nothing; one line. why: of it, what differs."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One rank: its places in the ranks of either side."""

    label: str
    before: int
    after: int


def require_comparable(before: Loaded, after: Loaded) -> Basis:
    """What to compare.

    Raises NotComparableError for another model, number of ranks, kind of GPU or kind of window.
    """
    if before.facts.model and after.facts.model:
        differ = _model_differences(before.facts.model, after.facts.model)
        if differ:
            raise _refusal(before, after, f"the models differ in {', '.join(differ)}", "Compare one model.")
    sizes = before.world_size, after.world_size
    if None not in sizes and sizes[0] != sizes[1]:
        what = f"one job has {plural(sizes[0] or 0, 'rank')}, the other {sizes[1]:,}"
        raise _refusal(before, after, what, "Compare jobs of equal size.")
    kinds = _gpus(before), _gpus(after)
    if all(kinds) and kinds[0] != kinds[1]:
        what = f"one ran on {' and '.join(kinds[0])}, the other on {' and '.join(kinds[1])}"
        raise _refusal(before, after, what, "Compare runs on one kind of device.")
    windows = _window_kinds(before), _window_kinds(after)
    if windows[0] != windows[1] or len(windows[0]) != 1:
        said = " and ".join(" and ".join(sorted(w)) or "nothing" for w in windows)
        raise _refusal(
            before,
            after,
            f"their windows differ in kind ({said}); a step and a capture are not comparable",
            "Name the steps of both with --step-range, or capture both the same way.",
        )
    return "step" if windows[0] == {"steps"} else "window"


def pair_ranks(before: Loaded, after: Loaded) -> list[Pair]:
    """Ranks by their number where all are known, else by their place where there are as many.

    Raises NotComparableError where neither is possible.
    """
    one, two = before.diagnosis.ranks, after.diagnosis.ranks
    numbers = _numbers(one), _numbers(two)
    if numbers[0] is not None and numbers[1] is not None:
        common = [n for n in numbers[0] if n in numbers[1]]
        if not common:
            what = "they have no rank in common"
            raise _refusal(before, after, what, "Capture the same ranks on both sides.")
        return [Pair(label=f"rank {n}", before=numbers[0][n], after=numbers[1][n]) for n in common]
    if len(one) != len(two):
        raise _refusal(
            before,
            after,
            f"they have {len(one):,} and {plural(len(two), 'rank')}, not all with known rank numbers",
            "Capture the same ranks on both sides.",
        )
    return [Pair(label=label, before=i, after=i) for i, label in enumerate(_places(one))]


def _places(ranks: Sequence[Rank]) -> list[str]:
    """Words for ranks without numbers that hold on both sides: process ids do not."""
    names = [f"GPU {r.device}" if r.rank is None else f"rank {r.rank}" for r in ranks]
    often = Counter(names)
    return [n if often[n] == 1 else f"{n}, place {i + 1}" for i, n in enumerate(names)]


def _numbers(ranks: Sequence[Rank]) -> dict[int, int] | None:
    found = {r.rank: i for i, r in enumerate(ranks) if r.rank is not None}
    return found if len(found) == len(ranks) else None


def gpu_names(side: Loaded) -> list[str]:
    """Names of the devices, each once."""
    return sorted({r.gpu.name for r in side.diagnosis.ranks if r.gpu.name})


def _gpus(side: Loaded) -> list[str]:
    """Names of the devices; empty where one of them is not known."""
    return gpu_names(side) if all(r.gpu.name for r in side.diagnosis.ranks) else []


def _window_kinds(side: Loaded) -> set[str]:
    return {r.window.kind for r in side.diagnosis.ranks}


def _model_differences(one: ModelShape, two: ModelShape) -> list[str]:
    return [
        f"{name} ({getattr(one, name)}, {getattr(two, name)})"
        for name in one.__struct_fields__
        if name not in _NOT_THE_MODEL and getattr(one, name) != getattr(two, name)
    ]


def _refusal(before: Loaded, after: Loaded, why: str, remedy: str) -> NotComparableError:
    message = f"{before.path} and {after.path} are not comparable: {why}. {remedy}"
    return NotComparableError(message, why)
