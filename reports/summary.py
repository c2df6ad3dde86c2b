"""What every report says of the run: ranks and inputs, the stretch that is analysed, which ranks are drawn,
hardware, model, layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from perfdoc.reports.over_ranks import device_word
from perfdoc.results import Diagnosis, Job, Rank
from perfdoc.results.figures import brief, count, flops, plural, size
from perfdoc.results.names import base_name, listed, shorten
from perfdoc.results.ranks import ASKED_FOR, NO_STEPS
from perfdoc.results.roles import RolesAnalysis, length_ns

PEAK_NAMES: Mapping[str | None, str] = MappingProxyType(
    {"datasheet": "the data sheet's dense peak", "measured": "a measured peak", "given": "a given peak"}
    | {None: "dense peak"}
)
"""What MFU is a share of, by Mfu.peak_kind."""


def rank_labels(ranks: Sequence[Rank]) -> list[str]:
    """What reports call the ranks, fit to be shown."""
    return [shorten(rank.label, 64) for rank in ranks]


def drawn_groups(ranks: Sequence[Rank], roles: RolesAnalysis | None) -> list[tuple[str, list[int]]]:
    """(heading, indices of ranks) that get a bar of their own, in the order of drawing: all of few ranks; of
    many those that differ most from their role, and a typical one of each."""
    if roles is None:
        return [("", list(range(len(ranks))))]
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
    return [(heading, members) for heading, members in groups if members]


_DRAWN, _LONGEST = 8, 4
"""Ranks under one heading."""


def drawn_ranks(ranks: Sequence[Rank], roles: RolesAnalysis | None) -> list[int]:
    """The same without headings."""
    return [i for _, members in drawn_groups(ranks, roles) for i in members]


def ranks_words(ranks: Sequence[Rank]) -> str:
    """`8 ranks`; devices that one known process has are none."""
    one = len({(r.input, r.pid) for r in ranks}) == 1 and all(r.rank is None and r.pid >= 0 for r in ranks)
    return f"{len(ranks)} GPUs of one process" if len(ranks) > 1 and one else plural(len(ranks), "rank")


def source_line(diagnosis: Diagnosis) -> str:
    """What was read, in a few words: files, ranks, GPU."""
    files = [base_name(item.path) for item in diagnosis.inputs]
    names = sorted({shorten(rank.gpu.name, 64) for rank in diagnosis.ranks if rank.gpu.name})
    parts = [
        ", ".join(files) if len(files) <= 2 else f"{files[0]} and {plural(len(files) - 1, 'more file')}",
        ranks_words(diagnosis.ranks) if diagnosis.ranks else "",  # of memory alone none
        listed(names, 2),
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


_MUCH_FRAC = 0.95
"""Of what was captured: a window of less is a part of it."""
_NO_STEPS = "no range names a step"


def analysed_line(diagnosis: Diagnosis) -> str:
    """Steps by name, the whole capture, or what the user gave; its length, and how many ranks. Empty without
    ranks."""
    ranks = diagnosis.ranks
    if not ranks:
        return ""
    kinds = {rank.window.kind for rank in ranks}
    what = _WHAT[kinds.pop()](ranks) if len(kinds) == 1 else "windows of several kinds"
    of = f" on each of {len(ranks):,} ranks" if len(ranks) > 1 else ""
    offered = _offered(ranks) if kinds == set() else ""
    return f"Analysed: {what}, {_lengths(ranks)}{of}.{offered}"


def _lengths(ranks: Sequence[Rank]) -> str:
    shown = [brief(length) for length in sorted(rank.window.duration_ns for rank in ranks)]
    length = shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"
    captured = max(max(rank.kernels_only_capture.span_ns, _with_start_up_ns(rank)) for rank in ranks)
    longest = max(rank.window.duration_ns for rank in ranks)
    return f"{length} of {brief(captured)} captured" if longest < _MUCH_FRAC * captured else length


def _with_start_up_ns(rank: Rank) -> int:
    start_up = rank.window.start_up
    begin = rank.window.start_ns if start_up is None else min(start_up.start_ns, rank.window.start_ns)
    return rank.window.end_ns - begin


def _steps(ranks: Sequence[Rank]) -> str:
    names = [tuple(step.name for step in rank.window.step_list) for rank in ranks]
    counts = sorted(rank.window.steps for rank in ranks)
    if counts[0] != counts[-1]:
        return f"{counts[0]:,} to {plural(counts[-1], 'step')}"
    count = plural(counts[0], "step")
    if len(set(names)) > 1 or not names[0]:
        return count
    first, last = (f"`{shorten(name, 48)}`" for name in (names[0][0], names[0][-1]))
    if counts[0] == 1 or first == last:
        return f"{count}, {first}"
    return f"{count}, {first} to {last}"


def _capture(ranks: Sequence[Rank]) -> str:
    start_ups = [rank.window.start_up for rank in ranks]
    after = any(start_up is not None and start_up.left_out for start_up in start_ups)
    what = "what follows start-up" if after else "the whole capture"
    if all(r.window.reason == ASKED_FOR for r in ranks):
        return what
    others = [r.window.reason for r in ranks if r.window.reason != NO_STEPS]
    return f"{what} ({shorten(others[0], 120) if others else _NO_STEPS})"


def _offered(ranks: Sequence[Rank]) -> str:
    """What could be analysed in place of the whole capture: an option last, whole, with nothing behind it."""
    found = [r.window.proposals[0] for r in ranks if r.window.kind == "capture" and r.window.proposals]
    if not found or all(r.window.reason == ASKED_FOR for r in ranks):
        return ""
    names = " + ".join(f"`{shorten(name, 48)}`" for name in found[0].names[:1])
    more = f" and {len(found[0].names) - 1} more" if found[0].names[1:] else ""
    return f" {names}{more} could: {found[0].option}"


def _user(ranks: Sequence[Rank]) -> str:
    return shorten(ranks[0].window.reason, 120)


_WHAT = {"steps": _steps, "capture": _capture, "user": _user}
