"""The device copies memory while no kernel runs: copies queue behind each other, or the next kernel waits for
them."""

import re
from collections.abc import Sequence

from perfdoc.analyzers.kernel_class.number_format import captured_format
from perfdoc.analyzers.tables.device import CopyTime
from perfdoc.results.figures import brief, per_cent, significant, size
from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.assumptions import FRAMEWORK, TRAINING, Assumes
from perfdoc.rules.engine.gain import RankMeasurement, ceiling, time_evidence
from perfdoc.rules.engine.needs import GPUS, WINDOW, given
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes, skips
from perfdoc.rules.facts.capture import why_start_up_counts
from perfdoc.rules.facts.loading import BY_MPI, copy_in_turn, exchanges_by_mpi, paused_in

_OFTEN = " (offloaded state, metrics read each step)"
_KEEP = f"Keep data on the device that is copied back and forth{_OFTEN}. "
_SAVED = (
    "The longest lies in {}: save in the background (torch.distributed.checkpoint.async_save), or less often."
)
_HOST = (
    "from pinned memory (pin_memory=True) with non_blocking=True, on a separate stream, one batch or layer "
    "ahead of its use."
)
_PINNED = (
    "with non_blocking=True on a separate stream, one batch or layer ahead of its use: host memory is pinned "
    "already, so that the link is what takes the time."
)
_UNKNOWN_MEMORY = (
    "with non_blocking=True, on a separate stream, one batch or layer ahead of its use, from pinned memory "
    "(pin_memory=True) if it is not pinned already."
)
_BARE = (
    "by cudaMemcpyAsync from pinned memory (cudaMallocHost) on a stream of its own, a piece ahead of its use."
)
_MAPPED = (
    "CPU and GPU share their memory here: let kernels use pinned memory where it lies (cudaHostAllocMapped), "
    "or managed memory, in place of copies."
)
_SHARES_MEMORY = r"\b(?:Xavier|Orin|Thor|Tegra|GB10)\b"
META = Meta(
    title="Exposed copies",
    action="Overlap copies with compute",
    sources=("definitions", "Megatron-Bridge guide", "NeMo guide"),
    topic="memory",
    time=("exposed_memcpy",),
    needs=(GPUS, WINDOW),
    advice=("mem_offload_tune",),
    assumes=(
        *(Assumes(of=FRAMEWORK, words=words, instead=_BARE) for words in (_HOST, _PINNED, _UNKNOWN_MEMORY)),
        Assumes(of=TRAINING, words=_OFTEN),
    ),
    for_servers=True,
)

MIN_FRAC = 0.05
"""Of the window, mean over ranks."""
NO_STEPS_MIN_FRAC = 0.5
"""The same for a problem in a window without steps, which includes start-up loads."""
_START_UP = "The window is the whole capture: weights loaded once at the start count. "
_BETWEEN = ("host to device", "device to host")
_KINDS = 3
"""Shown."""
_OFFLOADED = "cpu_offloading_num_layers"
MOSTLY_FRAC = 0.9
"""Of the copies between host and device: with as many pinned already, pinning is no advice."""
_HALF = " The GEMMs run in FP32: if these are weights or activations, 16 bits halve their bytes."
_LESS = "Copy {}, and overlap the rest"
_FEW = " take longer than compute can hide: beyond the overlap only {}fewer bytes save time"
_ON_DEVICE = "Remove copies on the device"
_TURNS = "Ranks copy one after the other, and each waits while the others do"
_DEVICE = (
    "Find what copies or clears whole tensors on the device (contiguous(), clone(), zero_grad without "
    "set_to_none): write results in place, or fuse the copy into the kernel that produces them."
)


def evaluate(case: Case) -> Verdict:
    """Fires if exposed copies take `MIN_FRAC` of the window; as information if that is the whole capture,
    start-up included, and they take less than `NO_STEPS_MIN_FRAC` of it."""
    missing = [c.capabilities["copies"] for c in case.captures if not c.capabilities["copies"].available]
    share = given(case.share(lambda r: r.ledger.exposed_memcpy))
    if missing and share < MIN_FRAC:
        return skips(missing[0].reason)
    evidence = time_evidence(case, "exposed copies", share, lambda r: r.ledger.exposed_memcpy)
    if share < MIN_FRAC:
        return passes(evidence)
    kinds = _over_ranks(case)
    shown = [c for c in kinds[:_KINDS] if 100 * c.exposed_ns >= kinds[0].exposed_ns]
    evidence += [(c.kind, _words(c, case)) for c in shown]
    with_host = 2 * sum(c.exposed_ns for c in kinds if "host" in c.kind) >= sum(c.exposed_ns for c in kinds)
    hidden = case.share(_hideable_ns) or 0.0
    few = with_host and hidden < share / 2
    pageable = with_host and _from_host(kinds) == _HOST
    batch = with_host and _one_way(kinds) and (pageable or not few)
    less = _LESS.format("from pinned memory" if batch else "less") if few else ""
    hand = _in_order(case, kinds, batch) if with_host else _DEVICE
    if with_host and all(re.search(_SHARES_MEMORY, rank.device.gpu_name or "") for rank in case.ranks):
        hand = _MAPPED
    if with_host and exchanges_by_mpi(case, sum(rank.ledger.exposed_memcpy for rank in case.ranks)):
        hand = BY_MPI
    if with_host and re.search(
        r"(?i)checkpoint|save(?![a-z])", found := paused_in(case, key="exposed_memcpy")
    ):
        hand = f"{_SAVED.format(found)} {hand}"
    advice = _fewer_layers(case) if with_host else []
    whole = bool(why_start_up_counts(case))
    return fires(
        blames=_TURNS if copy_in_turn(case) else "",
        level="information" if whole and share < NO_STEPS_MIN_FRAC else "problem",
        reason=f"{_fast(kinds[0])}{_FEW.format('pinned memory and ' * pageable)}"
        if few
        else "the device copies while no kernel runs",
        action=less if with_host else _ON_DEVICE,
        evidence=evidence,
        advice=advice,
        otherwise=hand,
        gain=ceiling(case, _hideable_ns, "compute hides copies for as long as it runs itself", in_turn=True)
        if with_host and not few
        else ceiling(case, lambda r: r.ledger.exposed_memcpy, "all exposed copies", in_turn=True),
        verify="Run again: exposed_memcpy in the ledger falls.",
        false_alarm=(_START_UP if whole else "")
        + "The window includes model loading, a checkpoint or an evaluation.",
    )


def _hideable_ns(rank: RankMeasurement) -> int:
    """Overlap hides a copy behind compute, of which there is only so much."""
    return min(rank.ledger.exposed_memcpy, rank.ledger.compute)


def _in_order(case: Case, kinds: Sequence[CopyTime], batch: bool) -> str:
    """What only comes from the host is copied ahead first, unless fewer bytes alone save more."""
    how = f"{_from_host(kinds)}{_in_16_bits(case, kinds)}"
    return f"Copy {how} {_KEEP}".rstrip() if batch else f"{_KEEP}Copy the rest {how}"


def _one_way(kinds: Sequence[CopyTime]) -> bool:
    most = kinds[0].exposed_ns >= MOSTLY_FRAC * sum(c.exposed_ns for c in kinds)
    return most and kinds[0].kind == _BETWEEN[0]


def _from_host(kinds: Sequence[CopyTime]) -> str:
    """By what is known of the host memory of most of the copies."""
    ours = [c for c in kinds if c.kind in _BETWEEN]
    if not ours or any(c.pinned is None for c in ours):
        return _UNKNOWN_MEMORY
    pinned, count = sum(c.pinned or 0 for c in ours), sum(c.count for c in ours)
    return _PINNED if pinned >= MOSTLY_FRAC * count else _HOST


def _in_16_bits(case: Case, kinds: Sequence[CopyTime]) -> str:
    """Of a job whose GEMMs are FP32 by the kernels' names, where most copies bring something to the device:
    what is multiplied so is likely kept so."""
    shown = captured_format(case.ranks)
    return _HALF if shown is not None and shown[0] == "fp32" and kinds[0].kind == _BETWEEN[0] else ""


def _fewer_layers(case: Case) -> list[Advice]:
    """Half of the offloaded layers, if any are. Megatron-core refuses to recompute the others with
    cpu_offloading; with fine_grained_activation_offloading it allows both."""
    layers = case.number(_OFFLOADED)
    if not case.is_set_to("cpu_offloading", True) or layers is None or layers < 2:
        return []
    why = f"offloads {layers // 2} layers instead of {layers}; then measure again"
    costs = "the other layers' activations stay on the GPU: check peak memory"
    gain = ceiling(case, lambda r: r.ledger.exposed_memcpy, "all exposed copies", in_turn=True)
    return [advise(knob=_OFFLOADED, to=layers // 2, why=why, costs=costs, gain=gain)]


def _over_ranks(case: Case) -> list[CopyTime]:
    """The ranks' copies by kind, most exposed first."""
    by_kind: dict[str, list[CopyTime]] = {}
    for rank in case.ranks:
        for copies in rank.copies:
            by_kind.setdefault(copies.kind, []).append(copies)
    found = [
        CopyTime(
            kind=kind,
            count=sum(c.count for c in some),
            exposed_ns=sum(c.exposed_ns for c in some),
            bytes=None if any(c.bytes is None for c in some) else sum(c.bytes or 0 for c in some),
            total_ns=sum(c.total_ns for c in some),
            pinned=None if any(c.pinned is None for c in some) else sum(c.pinned or 0 for c in some),
        )
        for kind, some in by_kind.items()
    ]
    return sorted((c for c in found if c.exposed_ns), key=lambda c: -c.exposed_ns)


def _fast(copies: CopyTime) -> str:
    known = copies.bytes is not None and copies.total_ns
    rate = f" at {significant((copies.bytes or 0) / copies.total_ns)} GB/s" if known else ""
    return f"copies {copies.kind}{rate}"


def _words(copies: CopyTime, case: Case) -> str:
    said = [f"{significant(copies.count / case.units)} a {case.unit}"]
    said += [] if copies.bytes is None else [size(round(copies.bytes / case.units))]
    said += [f"{brief(copies.exposed_ns / case.units)} exposed"]
    if copies.bytes and copies.total_ns:
        said += [f"{significant(copies.bytes / copies.total_ns)} GB/s"]
    if copies.pinned is not None and copies.kind in _BETWEEN:
        part = {0: "none", copies.count: "all"}.get(copies.pinned) or per_cent(copies.pinned / copies.count)
        said += [f"{part} pinned"]
    return ", ".join(said)
