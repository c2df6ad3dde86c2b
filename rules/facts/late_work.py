"""Why a rank computes longer: more kernels, all kernels longer (a slow device), or some (larger shapes)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernels.parts import NamedTime
from perfdoc.profiling.gpus import gpu_model, peak_flops
from perfdoc.results.figures import per_cent, significant
from perfdoc.results.names import shorten
from perfdoc.results.waits import LATE_WORDS, Straggler
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import Gain
from perfdoc.rules.facts.culprit_words import look_at_device
from perfdoc.rules.facts.exposed import seen

MOSTLY = 0.5
"""Of what it computes longer."""
SAME_NAMES_FRAC = 0.8
"""Of its kernels' time: a rank that runs so much of it too does the same work."""
UNIFORM = 0.5
"""A device is slow if nearly all of its time is in kernels that take longer by this share of the whole at
least."""
NEARLY_ALL = 0.9
_ALL = "All its kernels take"
_MORE = "Its kernels have"
_SOME = "Only some of its kernels take longer than theirs"


def work_words(case: Case, label: str) -> str:
    """What its kernels show against the median of the ranks that run the same, and what to compare; empty
    where that is not known. A slower model of GPU explains what takes longer in all of them; else it is told
    behind what they show."""
    found, (model, slower) = _kernel_words(case, label), _another_model(case, label)
    if slower and (not found or found.startswith(_ALL)):
        return f"{model}: give it less of the work, or run on equal GPUs"
    return f"{found}. {model}" if found and model else found


def _kernel_words(case: Case, label: str) -> str:
    found = _compared(case, label)
    if found is None:
        return ""
    own, counts, lengths = found
    work_ns, longer_ns = _excess_ns(own, counts, lengths)
    if work_ns + longer_ns <= 0:
        return ""
    if work_ns >= MOSTLY * (work_ns + longer_ns):
        more = sum(k.count for k in own.values()) / max(sum(counts.values()), 1.0) - 1
        return f"It runs {per_cent(more)} more kernels than they do: compare its share of the work"
    total = sum(k.total_ns for k in own.values())
    ratio = total / (total - longer_ns)
    least = 1 + UNIFORM * (ratio - 1)
    slow_ns = sum(k.total_ns for k in own.values() if k.total_ns >= least * k.count * lengths[k.name])
    if slow_ns >= NEARLY_ALL * total:
        blocks = _more_blocks(case, label)
        if blocks is not None and blocks >= least:
            larger = f"{_MORE} {significant(blocks)} times as many thread blocks"
            return f"{larger}: a larger batch, or longer sequences. Compare its share of the data"
        slow = f"{_ALL} {significant(ratio)} times as long: a slow GPU"
        return f"{slow}. {look_at_device(case)}"
    by_class: Counter[KernelClass] = Counter()
    for k in own.values():
        by_class[k.kernel_class] += k.total_ns - round(k.count * lengths[k.name])
    if by_class[KernelClass.EMBEDDING] >= MOSTLY * longer_ns:
        return f"{_SOME}, lookups in tables: compare which tables, or rows of them, its shard holds"
    if _of_experts(case, by_class, longer_ns):
        return f"{_SOME}, matrix products and not attention: compare how many tokens its experts get"
    return f"{_SOME}: compare the lengths of its sequences"


def check_of(part: str, name: str) -> str:
    """Of a device without a rank its name says that it is a GPU."""
    return f"Check {name}" if part == "GPU" and name.startswith("GPU ") else f"Check the {part} of {name}"


def _another_model(case: Case, label: str) -> tuple[str, bool]:
    """That its GPU is none of those of the others, which are all of one model, and whether it has a lower
    peak; empty where it is."""
    each = dict(zip(case.job.labels, (r.device.gpu_name for r in case.ranks), strict=False))
    own, others = each.pop(label, None), set(each.values())
    if not own or len(others) != 1 or others & {own, None}:
        return "", False
    other = str(others.pop())
    if (model := gpu_model(own)) is not None and model == gpu_model(other):  # named so by other drivers
        return "", False
    told = f"Its GPU is another model ({shorten(own, 48)}, the others' {shorten(other, 48)})"
    return told, (peak_flops(own, "fp16") or inf) < (peak_flops(other, "fp16") or 0)


def computing_part(words: str) -> str:
    """What to check of a rank that computes longer: its work, where its kernels are others or only some of
    them take longer. words: of work_words, or of no kernels."""
    return "work" if words.startswith(("It runs", _SOME, _MORE)) else "GPU"


def _more_blocks(case: Case, label: str) -> float | None:
    """How many times as many thread blocks it launches as the median of its peers; None unknown."""
    each = {
        name: float(rank.step_ledgers.blocks.mean())
        for rank, name in zip(case.ranks, case.job.labels, strict=False)
        if len(rank.step_ledgers.blocks) and (rank.step_ledgers.blocks > 0).all()
    }
    own = each.pop(label, None)
    return own / median(each.values()) if own and each else None


def as_spread(case: Case, label: str, words: str, gain: Gain | None) -> Gain | None:
    """What it has more of to do than its peers is not gone, it moves: from its time to the mean of all ranks
    at least. words: of work_words."""
    if gain is None or not gain.is_predicted or not words.startswith(("It runs", _MORE)):
        return gain
    computes = {
        name: rank.ledger.compute / case.units_of(rank) / 1e6
        for rank, name in zip(case.ranks, case.job.labels, strict=False)
    }
    moved = max(computes[label] - sum(computes.values()) / len(computes), 0.0)
    mid = min(gain.mid_ms or 0.0, moved)
    said = [*gain.assumptions, "its work shared among all ranks; at most all that it has more of gone"]
    return replace(gain, low_ms=min(gain.low_ms or 0.0, mid), mid_ms=mid, assumptions=said)


def _of_experts(case: Case, by_class: Mapping[KernelClass, int], longer_ns: float) -> bool:
    """Whether tokens are exchanged between experts, and what takes longer is what experts run: longer
    sequences make attention longer first. by_class: ns that its kernels take longer."""
    products, attention = (by_class[of] for of in (KernelClass.GEMM, KernelClass.ATTENTION))
    return seen(case, "ep") and products >= MOSTLY * longer_ns and attention < (1 - NEARLY_ALL) * longer_ns


def longer_times(case: Case, label: str) -> float | None:
    """How many times as long its kernels run as those of the ranks that run the same; None where that is not
    known, or no more than once."""
    found = _compared(case, label)
    if found is None:
        return None
    own, counts, lengths = found
    work_ns, longer_ns = _excess_ns(own, counts, lengths)
    total = sum(k.total_ns for k in own.values())
    # A stage's own kernels beside slow ones are no slowness: the figure of what is done about it.
    more_ns = work_ns + longer_ns if work_ns >= MOSTLY * (work_ns + longer_ns) else longer_ns
    return total / (total - more_ns) if 0 < more_ns < total else None


def _compared(
    case: Case, label: str
) -> tuple[dict[str, NamedTime], dict[str, float], dict[str, float]] | None:
    """Its kernels by name, and how many the others run, and how long one takes; None without such others."""
    each = {
        name: {k.name: k for k in rank.kernel_times if k.kernel_class != KernelClass.COMMUNICATION}
        for rank, name in zip(case.ranks, case.job.labels, strict=False)
    }
    own = each.pop(label, {})
    total = sum(k.total_ns for k in own.values())
    peers = [o for o in each.values() if _in(own, o) >= SAME_NAMES_FRAC * total and _in(o, own) > 0]
    return (own, *_usual(own, peers)) if total and peers else None


def _excess_ns(
    own: Mapping[str, NamedTime], counts: Mapping[str, float], lengths: Mapping[str, float]
) -> tuple[float, float]:
    """Of what it computes longer: in kernels that the others do not run, and in those that take longer."""
    return (
        sum((k.count - counts[k.name]) * lengths[k.name] for k in own.values()),
        sum(k.total_ns - k.count * lengths[k.name] for k in own.values()),
    )


def _in(kernels: Mapping[str, NamedTime], others: Mapping[str, NamedTime]) -> int:
    """Time of the kernels that the others run too."""
    return sum(k.total_ns for k in kernels.values() if k.name in others)


def _usual(
    own: Mapping[str, NamedTime], peers: Sequence[Mapping[str, NamedTime]]
) -> tuple[dict[str, float], dict[str, float]]:
    """By name how many the others run, and how long one takes; a name that none has takes what it takes."""
    counts, lengths = {}, {}
    for name, mine in own.items():
        found = [peer[name] for peer in peers if name in peer]
        counts[name] = float(median(k.count for k in found)) if found else 0.0
        lengths[name] = median(k.total_ns / k.count for k in found) if found else mine.total_ns / mine.count
    return counts, lengths


def late_words(case: Case, late: Straggler) -> str:
    """What it does; of data it is likely where no range and no thread shows it, but the place alone."""
    mine = [r for r, label in zip(case.ranks, case.job.labels, strict=False) if label == late.name]
    placed = any(2 * (r.host.data.idle_position_ns or 0) > r.ledger.idle.data for r in mine)
    return f"{'likely ' if late.cause == 'data' and placed else ''}{LATE_WORDS[late.cause]}"
