"""What every report says of the run: its ranks and inputs, which ranks it draws, hardware, model, layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from perfdoc.reports.devices import device_word
from perfdoc.reports.leaves import add_up, leaf_values
from perfdoc.results import Diagnosis, Job, Rank
from perfdoc.results.figures import count, flops, plural, size
from perfdoc.results.names import base_name, shorten
from perfdoc.results.roles import RolesAnalysis, length_ns

_DRAWN, _LONGEST = 8, 4
"""Ranks under one heading."""

PEAK_NAMES: Mapping[str | None, str] = MappingProxyType(
    {"datasheet": "the data sheet's dense peak", "measured": "a measured peak", "given": "a given peak"}
    | {None: "dense peak"}
)
"""What MFU is a share of, by Mfu.peak_kind."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Which ranks get a bar of their own, as indices into Diagnosis.ranks, in the order of drawing."""

    groups: list[tuple[str, list[int]]]
    """(heading, indices); the heading is empty where all are drawn."""
    left_out: int

    @property
    def indices(self) -> list[int]:
        """All of them."""
        return [i for _, group in self.groups for i in group]


def rank_labels(ranks: Sequence[Rank]) -> list[str]:
    """What reports call the ranks, fit to be shown."""
    return [shorten(rank.label, 64) for rank in ranks]


def choose_drawn(ranks: Sequence[Rank], roles: RolesAnalysis | None) -> Drawn:
    """All ranks, of which there are few; of many those that differ most from their role, and a typical one of
    each."""
    if roles is None:
        return Drawn(groups=[("", list(range(len(ranks))))], left_out=0)
    far = [each.rank for each in roles.outliers[:_DRAWN]]
    few = roles.unjudged[:_DRAWN]
    typical = [role.typical for role in roles.heaviest(_DRAWN) if role.typical not in {*far, *few}]
    lengths = [length_ns(rank, steps=roles.steps) for rank in ranks]
    order = sorted(range(len(ranks)), key=lambda i: (-lengths[i], i))
    longest = [i for i in order if i not in {*far, *few, *typical}][:_LONGEST]
    groups = [
        ("differ most from their role", far),
        ("of roles too small to judge", few),
        ("typical of each role", typical),
        ("longest steps" if roles.steps else "longest windows", longest),
    ]
    groups = [(heading, members) for heading, members in groups if members]
    return Drawn(groups=groups, left_out=len(ranks) - sum(len(members) for _, members in groups))


def total_values(diagnosis: Diagnosis) -> list[int]:
    """Leaf values in ns over all ranks, in the order of LEAVES."""
    return add_up(leaf_values(rank.ledger_ns) for rank in diagnosis.ranks)


def source_line(diagnosis: Diagnosis) -> str:
    """What was read, in a few words: files, ranks, GPU."""
    files = [base_name(item.path) for item in diagnosis.inputs]
    names = sorted({shorten(rank.gpu.name, 64) for rank in diagnosis.ranks if rank.gpu.name})
    parts = [
        ", ".join(files) if len(files) <= 2 else f"{files[0]} and {plural(len(files) - 1, 'more file')}",
        plural(len(diagnosis.ranks), "rank"),
        ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else ""),
    ]
    return " · ".join(part for part in parts if part)


_SIZES = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp")
_BATCH = (
    ("global_batch_sequences", "sequences per step"),
    ("micro_batch_sequences", "per micro-batch"),
    ("micro_batches", "micro-batches per pipeline"),
    ("sequence_length", "tokens per sequence"),
)


def facts_of(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    """(what, value, who said so) of everything known; what is unknown has no row."""
    yield from _hardware(diagnosis)
    if diagnosis.job is not None:
        yield from _job(diagnosis.job)
    mfu = diagnosis.mfu
    if mfu.peak_flops is not None:
        peak = f"{flops(mfu.peak_flops)}FLOP/s per {device_word(diagnosis.ranks)}"
        yield PEAK_NAMES[mfu.peak_kind], peak, shorten(mfu.peak_source, 160)
    if mfu.flops_per_step is not None:
        yield "model FLOPs per step", f"{mfu.flops_per_step:,}", shorten(mfu.flops_source, 96)
    kinds = Counter(rank.window.kind for rank in diagnosis.ranks)
    if kinds:
        steps = {rank.window.steps for rank in diagnosis.ranks}
        of = f", {plural(max(steps), 'step')} per rank" if max(steps) else ""
        yield "analysed", ", ".join(f"{kind} of {plural(n, 'rank')}" for kind, n in kinds.items()) + of, ""
    tools = Counter(i.tool_version for i in diagnosis.inputs if i.tool_version)
    if tools:
        yield "captured with", ", ".join(shorten(version, 64) for version in list(tools)[:4]), ""
    yield "perfdoc", shorten(diagnosis.perfdoc_version, 64), ""


def _hardware(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    gpus = Counter((r.gpu.name, r.gpu.sm_count, r.gpu.memory_bytes) for r in diagnosis.ranks)
    for (name, sms, memory), ranks in list(gpus.items())[:4]:
        parts = [shorten(name, 64) if name else "model unknown"]
        parts += [f"{sms} SMs"] if sms else []
        parts += [size(memory)] if memory else []
        yield "device", f"{plural(ranks, 'rank')}: " + ", ".join(parts), ""


def _job(job: Job) -> Iterator[tuple[str, str, str]]:
    def said(*fields: str) -> str:
        return shorten(", ".join(dict.fromkeys(job.sources[f] for f in fields if f in job.sources)), 96)

    if job.model is not None:
        yield "model", shorten(job.model, 64), said("model")
    if job.world_size is not None:
        yield "ranks of the job", count(job.world_size), said("world_size")
    sizes = {key: getattr(job, key) for key in _SIZES if getattr(job, key) is not None}
    layout = [f"{key} {value}" for key, value in sizes.items()]
    if job.sequence_parallel is not None:
        layout.append("sequence parallel" if job.sequence_parallel else "no sequence parallel")
    if layout:
        yield "layout", ", ".join(layout), said(*sizes, "sequence_parallel")
    batch = {key: f"{getattr(job, key):,} {words}" for key, words in _BATCH if getattr(job, key) is not None}
    if batch:
        yield "batch", ", ".join(batch.values()), said(*batch)
    if job.dtype is not None:
        yield "GEMM dtype", shorten(job.dtype, 48), said("dtype")
    if job.recompute is not None:
        yield "recompute", shorten(job.recompute, 48), said("recompute")
    if job.tokens_per_step is not None:
        yield "tokens per step", count(job.tokens_per_step), ""
