"""Where each rank stands in the job's layout: its stage, and its place in every parallel dimension.

Numbers of ranks are read in the order that megatron-core, DeepSpeed and torchtitan share: tensor parallel
fastest, then context, data, pipeline. Groups that communicate say whether it is so; one that contradicts it
leaves every place unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

from perfdoc.records import dataclass
from perfdoc.results.headline import Job
from perfdoc.results.ranks import Rank
from perfdoc.results.waits import BY_NUMBERS, PipelineAnalysis

_ORDER = ("tp", "cp", "dp", "pp")
"""From the fastest to the slowest."""
_MAY_DIFFER = {"tp": ("tp",), "cp": ("cp",), "dp": ("dp", "cp"), "pp": ("pp",)}
"""Places that differ within a group of a dimension: gradients are often reduced over DP and CP at once."""
_Stages = Sequence[int | None]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Places of every rank, by position in Diagnosis.ranks."""

    stage: _Stages
    stage_role: Mapping[int, str]
    """`embedding`, `loss` or `middle`, by stage."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    of: Mapping[str, Sequence[int]] = field(default_factory=dict)
    agreeing: int = 0
    refuted: bool = False
    """These four: see RolePlaces."""
    counted: bool = False
    """Stages are the pipeline analysis's, from groups that communicate; else they are by rank number."""

    def is_inner(self, stage: int | None) -> bool:
        """Whether it neither embeds nor computes the loss, as far as is known."""
        known = [each for each in self.stage if each is not None]
        if stage is None:
            return False
        return self.stage_role.get(stage, "middle") == "middle" and min(known) < stage < max(known)

    def stage_label(self, stage: int) -> str:
        """With what it does besides its layers."""
        role = self.stage_role.get(stage, "")
        return f"stage {stage}, {role}" if role in ("embedding", "loss") else f"stage {stage}"


def place_ranks(ranks: Sequence[Rank], job: Job | None, pipeline: PipelineAnalysis) -> Places:
    """Stages from the pipeline's analysis, else by rank number; the rest by rank number. The analysis may
    have them from rank numbers too: then they are no evidence, and groups can refute them."""
    groups = _find_groups(ranks)
    by_label = {row.label: row.stage for row in pipeline.stages}
    by_rank = {row.rank: row.stage for row in pipeline.stages if row.rank is not None}
    measured = [by_label.get(rank.label) if rank.rank is None else by_rank.get(rank.rank) for rank in ranks]
    roles = {row.stage: row.role for row in pipeline.stages if row.stage is not None}
    by_number = pipeline.sources.get("stages") == BY_NUMBERS
    counted = any(stage is not None for stage in measured) and not by_number
    refuted = _place_by_groups(ranks, roles, pipeline.pp, groups)
    unplaced = Places(stage=measured, stage_role=roles, counted=counted)
    if not counted and _span_stages(groups, measured):
        unplaced = refuted
    sizes = _complete_sizes(job)
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    if sizes is None or len(set(numbers)) < len(ranks):
        return unplaced
    if not 0 <= min(numbers) <= max(numbers) < prod(sizes.values()):
        return unplaced
    of = _place_numbers(numbers, sizes)
    agreeing = _count_agreeing(groups, sizes, of)
    if agreeing is None:
        return unplaced if counted else refuted
    if counted and any(a not in (None, b) for a, b in zip(measured, of["pp"], strict=True)):
        return unplaced
    shown = {name: size for name, size in sizes.items() if size > 1 and name != "pp"}
    return Places(
        stage=of["pp"] if sizes["pp"] > 1 else measured,
        stage_role=roles,
        sizes=shown,
        of={name: of[name] for name in shown},
        agreeing=agreeing,
        counted=counted,
    )


_Groups = Mapping[tuple[str, str], set[int]]
"""By dimension and label, who communicates there."""


def _find_groups(ranks: Sequence[Rank]) -> _Groups:
    groups: dict[tuple[str, str], set[int]] = {}
    for i, rank in enumerate(ranks):
        for row in rank.communication:
            if row.group:
                groups.setdefault((row.dimension, row.group), set()).add(i)
    return groups


def _place_by_groups(
    ranks: Sequence[Rank], roles: Mapping[int, str], pp: int | None, groups: _Groups
) -> Places:
    """Where rank numbers are refuted: stages by their order within each group of PP, where every rank is in
    one of `pp` ranks and no group of another dimension spans them; else none."""
    stage: list[int | None] = [None] * len(ranks)
    pipelines = [sorted(of, key=lambda i: ranks[i].rank or 0) for (d, _), of in groups.items() if d == "pp"]
    in_one = Counter(i for of in pipelines for i in of)
    numbered = all(rank.rank is not None for rank in ranks)
    if numbered and len(in_one) == len(ranks) == in_one.total() and {len(of) for of in pipelines} == {pp}:
        for of in pipelines:
            for place, i in enumerate(of):
                stage[i] = place
    if None in stage or _span_stages(groups, stage):
        return Places(stage=[None] * len(ranks), stage_role={}, refuted=True)
    return Places(stage=stage, stage_role=roles, counted=True, refuted=True)


def _span_stages(groups: _Groups, stages: _Stages) -> bool:
    """Whether a group of TP, CP or DP holds ranks of several stages. A label that more ranks share than a
    stage has names every group of its kind."""
    most = max(Counter(stage for stage in stages if stage is not None).values(), default=0)
    return any(
        dimension in ("tp", "cp", "dp")
        and len(members) <= most
        and len({stages[i] for i in members} - {None}) > 1
        for (dimension, _), members in groups.items()
    )


def _complete_sizes(job: Job | None) -> dict[str, int] | None:
    """All four, one of them from the others where the job's size is known; None where more is missing."""
    if job is None:
        return None
    known = {name: getattr(job, name) for name in _ORDER if getattr(job, name)}
    missing = [name for name in _ORDER if name not in known]
    whole = prod(known.values())
    if len(missing) == 1 and job.world_size and job.world_size % whole == 0:
        known[missing[0]] = job.world_size // whole
    elif missing or job.world_size not in (None, whole):
        return None
    return {name: known[name] for name in _ORDER}


def _place_numbers(numbers: Sequence[int], sizes: Mapping[str, int]) -> dict[str, list[int]]:
    """Places by dimension.

    >>> _place_numbers([0, 1, 2, 5], {"tp": 2, "cp": 1, "dp": 2, "pp": 2})["dp"]
    [0, 0, 1, 0]
    """
    places, step = {}, 1
    for name in _ORDER:
        places[name] = [number // step % sizes[name] for number in numbers]
        step *= sizes[name]
    return places


def _count_agreeing(groups: _Groups, sizes: Mapping[str, int], of: Mapping[str, Sequence[int]]) -> int | None:
    """How many groups hold only ranks that may be in one; None where a group holds others.

    A label that more ranks share than the group can have names every group of its kind, and proves nothing.
    """
    agreeing = 0
    for (dimension, _), members in groups.items():
        may_differ = _MAY_DIFFER.get(dimension, ())
        if not may_differ or not 2 <= len(members) <= prod(sizes[name] for name in may_differ):
            continue
        same = [name for name in _ORDER if name not in may_differ]
        if any(len({of[name][i] for i in members}) > 1 for name in same):
            return None
        agreeing += 1
    return agreeing
