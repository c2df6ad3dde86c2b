"""A tensor that a collective used on its own stream is given back only when an event says that the stream is
past it; until then its memory is lost to everybody."""

import re

from perfdoc.results.figures import gib, per_cent
from perfdoc.results.names import within
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import GPUS, Missing, Need, given, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.memory_room import is_short, rooms, shares_of_reserved, why_unknown, worst_share


def _no_segments(case: Case) -> Missing | None:
    if shares_of_reserved(case, "pending_free"):
        return None
    return skipped("no snapshot shows its segments at the peak" if rooms(case) else why_unknown(case))


META = Meta(
    title="Freed memory held for communication streams",
    action="Free memory of communication streams sooner",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="memory",
    needs=(GPUS, Need(words="a memory snapshot with segments at the peak", missing=_no_segments)),
    advice=("mem_avoid_record_streams",),
    for_servers=True,
)

MIN_FRAC = 0.05
"""Of what is reserved at the peak: freed, but another stream may still use it."""
_KNOB = "torch_nccl_avoid_record_streams"
_FIRST = (2, 8)
"""PyTorch from here on marks no stream in collectives and ignores the variable (pytorch#148590, taken out of
2.7 again by #150352)."""
_RELEASE = r"(\d{1,3})\.(\d{1,3})(?:\.\d{1,3})?(?:\+(?:cpu|cu\d+|rocm[\d.]+))?"
"""A release as PyTorch builds it. Other builds may have taken over changes of later ones: in one of them the
variable made losses wrong with virtual stages (Megatron-LM#1586)."""
_OWN_STREAMS = "Find who calls record_stream (a copy or prefetch stream of the program's own)."


def evaluate(case: Case) -> Verdict:
    """Fires where freed memory that waits for a stream is `MIN_FRAC` of what is reserved at the peak, and
    memory is short."""
    share, room = worst_share(shares_of_reserved(case, "pending_free"), MIN_FRAC)
    size = given(room.device.layout).pending_free_bytes or 0
    evidence = [
        ("freed but waiting for a stream, of reserved at the peak", f"{per_cent(share)}, {gib(size)}")
    ]
    if share < MIN_FRAC:
        return passes(evidence)
    if not is_short(room):
        return passes(evidence, "the device has memory to spare, or how much it has is not known")
    if case.is_set_to(_KNOB, 1):
        return passes(evidence, "the switch against it is set; recent PyTorch behaves so without it")
    obeys = _obeys(case.job.facts.torch_version)
    why = (
        "PyTorch keeps a reference until the collective was waited for, instead of marking the stream, as "
        "later releases do by themselves"
    )
    return fires(
        reason="memory is short, and much of it is freed and not yet given back",
        evidence=evidence,
        advice=[advise(knob=_KNOB, to=1, why=why)] if obeys else [],
        remedy=_OWN_STREAMS if obeys is False else _UNKNOWN if obeys is None else "",
        otherwise=_OWN_STREAMS,
        verify="Record a snapshot again: frees at the peak complete at once.",
        false_alarm="Streams of the program's own that call record_stream: the variable does not reach them.",
    )


_UNKNOWN = (
    f"Which release of PyTorch this is, is not known. Before {_FIRST[0]}.{_FIRST[1]} set {_KNOB.upper()}=1; "
    f"from then on it is ignored: {within(_OWN_STREAMS)}"
)


def _obeys(version: str | None) -> bool | None:
    """Whether PyTorch reads the variable; None where the version is not known, or no release's."""
    numbers = re.match(r"(\d{1,3})\.(\d{1,3})\b", version or "")
    if numbers is None:
        return None
    if (int(numbers[1]), int(numbers[2])) >= _FIRST:
        return False
    return True if re.fullmatch(_RELEASE, version or "") else None
