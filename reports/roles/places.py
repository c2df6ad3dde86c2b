"""Where each rank stands in the job's layout: its stage, and its place in every parallel dimension.

Numbers of ranks are read in the order that megatron-core, DeepSpeed and torchtitan share: tensor parallel
fastest, then context, data, pipeline. Groups that communicate say whether it is so; one that contradicts it
leaves every place unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from perfdoc.results import Diagnosis, Job, PipelineAnalysis, Rank

_ORDER = ("tp", "cp", "dp", "pp")
"""From the fastest to the slowest."""
_MAY_DIFFER = {"tp": ("tp",), "cp": ("cp",), "dp": ("dp", "cp"), "pp": ("pp",)}
"""Places that differ within a group of a dimension: gradients are often reduced over DP and CP at once."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Places of every rank, by position in Diagnosis.ranks."""

    stage: Sequence[int | None]
    stage_role: Mapping[int, str]
    """`embedding`, `loss` or `middle`, by stage."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of tp, cp, dp and ep, those above 1; empty where places are not known."""
    of: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Place of every rank, by dimension of `sizes`."""
    agreeing: int = 0
    """Groups of ranks that were held against the places."""
    counted: bool = False
    """Stages are the pipeline analysis's, from groups that communicate; else they are by rank number."""
    refuted: bool = False
    """A group holds ranks that rank numbers put apart."""

    def is_inner(self, stage: int | None) -> bool:
        """Whether it neither embeds nor computes the loss, as far as is known."""
        known = [each for each in self.stage if each is not None]
        if stage is None:
            return False
        return self.stage_role.get(stage, "middle") == "middle" and min(known) < stage < max(known)


def places_of(diagnosis: Diagnosis) -> Places:
    """Stages from the pipeline's analysis, else by rank number; the rest by rank number. The analysis may
    have them from rank numbers too: then they are no evidence, and groups can refute them."""
    ranks = diagnosis.ranks
    pipeline = diagnosis.analyses.pipeline
    by_label = {row.label: row.stage for row in pipeline.stages}
    by_rank = {row.rank: row.stage for row in pipeline.stages if row.rank is not None}
    measured = [by_label.get(rank.label) if rank.rank is None else by_rank.get(rank.rank) for rank in ranks]
    roles = {row.stage: row.role for row in pipeline.stages if row.stage is not None}
    counted = any(stage is not None for stage in measured) and not _by_number(pipeline)
    unplaced = Places(stage=measured, stage_role=roles, counted=counted)
    if not counted and _across(ranks, measured):
        unplaced = _refuted(ranks, roles, pipeline.pp)
    sizes = _sizes(diagnosis.job)
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    if (
        sizes is None
        or len(set(numbers)) < len(ranks)
        or not 0 <= min(numbers) <= max(numbers) < prod(sizes.values())
    ):
        return unplaced
    of = _of_numbers(numbers, sizes)
    agreeing = _agreeing(ranks, sizes, of)
    if agreeing is None or (
        counted and any(a not in (None, b) for a, b in zip(measured, of["pp"], strict=True))
    ):
        return unplaced if counted else _refuted(ranks, roles, pipeline.pp)
    shown = {name: size for name, size in sizes.items() if size > 1 and name != "pp"}
    if (experts := _experts(diagnosis.job, ranks, numbers, sizes)) is not None:
        shown["ep"], of["ep"] = experts
    return Places(
        stage=of["pp"] if sizes["pp"] > 1 else measured,
        stage_role=roles,
        sizes=shown,
        of={name: of[name] for name in shown},
        agreeing=agreeing,
        counted=counted,
    )


def _by_number(pipeline: PipelineAnalysis) -> bool:
    return pipeline.sources.get("stages", "").startswith("rank numbers")


def _refuted(ranks: Sequence[Rank], roles: Mapping[int, str], pp: int | None) -> Places:
    """Stages by the order of rank numbers within each group of PP, where every rank is in one of `pp` ranks
    and no group of another dimension spans them; else none."""
    groups: dict[str, dict[int, int]] = {}
    for i, rank in enumerate(ranks):
        names = {row.group for row in rank.communication if row.dimension == "pp" and row.group}
        if len(names) == 1 and rank.rank is not None:
            groups.setdefault(names.pop(), {})[i] = rank.rank
    stage: list[int | None] = [None] * len(ranks)
    for members in groups.values():
        for place, i in enumerate(sorted(members, key=members.__getitem__)):
            stage[i] = place
    sizes = {len(members) for members in groups.values()}
    if pp is None or sizes != {pp} or None in stage or _across(ranks, stage):
        return Places(stage=[None] * len(ranks), stage_role={}, refuted=True)
    return Places(stage=stage, stage_role=roles, counted=True, refuted=True)


def _across(ranks: Sequence[Rank], stages: Sequence[int | None]) -> bool:
    """Whether a group of TP, CP or DP holds ranks of several stages. A label that more ranks share than a
    stage has names every group of its kind."""
    most = max(Counter(stage for stage in stages if stage is not None).values(), default=0)
    return any(
        dimension in ("tp", "cp", "dp")
        and len(members) <= most
        and len({stages[i] for i in members} - {None}) > 1
        for (dimension, _), members in _groups(ranks).items()
    )


def _groups(ranks: Sequence[Rank]) -> dict[tuple[str, str], set[int]]:
    """By dimension and label, who communicates there."""
    found: dict[tuple[str, str], set[int]] = {}
    for i, rank in enumerate(ranks):
        for row in rank.communication:
            if row.group:
                found.setdefault((row.dimension, row.group), set()).add(i)
    return found


def _sizes(job: Job | None) -> dict[str, int] | None:
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


def _of_numbers(numbers: Sequence[int], sizes: Mapping[str, int]) -> dict[str, list[int]]:
    """Places by dimension.

    >>> _of_numbers([0, 1, 2, 5], {"tp": 2, "cp": 1, "dp": 2, "pp": 2})["dp"]
    [0, 0, 1, 0]
    """
    found, step = {}, 1
    for name in _ORDER:
        found[name] = [number // step % sizes[name] for number in numbers]
        step *= sizes[name]
    return found


def _agreeing(ranks: Sequence[Rank], sizes: Mapping[str, int], of: Mapping[str, Sequence[int]]) -> int | None:
    """How many groups hold only ranks that may be in one; None where a group holds others.

    A label that more ranks share than the group can have names every group of its kind, and proves nothing.
    """
    found = 0
    for (dimension, _), members in _groups(ranks).items():
        may_differ = _MAY_DIFFER.get(dimension, ())
        if not may_differ or not 2 <= len(members) <= prod(sizes[name] for name in may_differ):
            continue
        same = [name for name in _ORDER if name not in may_differ]
        if any(len({of[name][i] for i in members}) > 1 for name in same):
            return None
        found += 1
    return found


def _experts(
    job: Job | None, ranks: Sequence[Rank], numbers: Sequence[int], sizes: Mapping[str, int]
) -> tuple[int, list[int]] | None:
    """(EP, places in it), as megatron-core lays experts out in a stage: expert TP fastest, then EP. None
    where no such group was seen, or one contradicts it: of experts more than one order is usual."""
    ep = job.ep if job is not None else None
    if job is None or ep is None or ep < 2:
        return None
    groups = [members for (dimension, _), members in _groups(ranks).items() if dimension == "ep"]
    seen = [{numbers[i] for i in members} for members in groups if 2 <= len(members) <= ep]
    stage = prod(sizes[name] for name in ("tp", "cp", "dp"))
    for etp in dict.fromkeys([job.etp] if job.etp else [sizes["tp"], 1]):
        fits = stage % (etp * ep) == 0 and all(
            len({(n % etp, n // (etp * ep)) for n in members}) == 1 for members in seen
        )
        if seen and fits:
            return ep, [n // etp % ep for n in numbers]
    return None
