"""PD120: context-parallel communication that attention does not hide."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.results.figures import per_cent
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import GPUS, WINDOW
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.context_parallel import covered_cp, transfer_over_attention, two_levels
from perfdoc.rules.facts.exposed import ceiling_of_transfer, communication, judged
from perfdoc.rules.facts.hidden import level_of, surely_saved

META = Meta(
    code="PD120",
    title="Exposed context-parallel communication",
    why="Keys and values travel between the ranks that share a sequence. A ring moves them beside attention, "
    "as long as each piece of attention takes longer than the transfer of the next; gathers and exchanges of "
    "heads stand in front of it.",
    sources=("seed 000", "seed 001", "seed 004"),
    topic="long_sequence",
    time=("exposed_comm.cp",),
    needs=(GPUS, WINDOW, communication("cp")),
    advice=(
        "cp_configurable",
        "cp_p2p",
        "cp_all_gather",
        "cp_a2a",
        "cp_a2a_p2p",
        "cp_per_layer",
        "cp_compute_comm_scaling",
        "cp_hier_verl",
        "cp_tldr",
    ),
)

_TYPE, _SIZES, _CP = "cp_comm_type", "hierarchical_context_parallel_sizes", "context_parallel_size"
_IN_FRONT = ("a2a", "all_gather")
"""Schemes that cannot overlap."""
HELD_FRAC = 0.25
"""Of what is exposed: where the replay hides as much beside attention that is there, the ring is held up."""
_HELD = (
    "Attention waits for pieces that it does not need yet: the ring does not run beside it as it could. Look "
    "for what holds it up, such as CUDA_DEVICE_MAX_CONNECTIONS (PD112), before the degree is changed."
)
_REMEDIES = {
    "mixed": "cp_comm_type differs from layer to layer: give the layers whose exchange is exposed p2p.",
    "unknown": "Give the job's configuration (--config FILE): which scheme moves keys and values is not "
    "known.",
    "ring": "Attention is long enough to hide the ring: look for what holds it up, such as "
    "CUDA_DEVICE_MAX_CONNECTIONS (PD112), or ranks whose pieces of a packed batch differ.",
    "unclear": "How long attention takes is not known, and so whether it could hide the transfer: name the "
    "parts of the model with NVTX or record_function ranges.",
    "short": "Pieces of attention are too short to hide the transfer and no other split is known to fit: "
    "less context parallelism, or longer sequences, hide more.",
}


def evaluate(case: Case) -> Verdict:
    """Fires at `exposed.MIN_FRAC` of the window, mean over ranks: as a problem where the scheme is known not
    to overlap (a2a, all_gather) or next to nothing is hidden. No other degree or scheme is advised where the
    replay finds that the ring is only held up."""
    nothing, evidence = judged(case, "cp")
    if nothing is not None:
        return nothing
    scheme, cp, exposed = _scheme(case), case.degree(_CP), ceiling_of_transfer(case, "cp")
    ratio = transfer_over_attention(case)
    if scheme is not None:
        evidence.append(Evidence(label="scheme (cp_comm_type)", value=scheme))
    if ratio is not None:
        evidence.append(Evidence(label="CP communication by the time of attention", value=per_cent(ratio, 0)))
    held = _held_up(case, exposed) if scheme in ("p2p", None) else None
    advice = [] if cp is None or scheme is None or held else list(_advice(case, scheme, cp, ratio))
    return Verdict(
        state="fires",
        worst=worst_exposed(case, "cp"),
        level=level_of(case, "cp", switched_off=scheme in _IN_FRONT),
        reason="attention does not hide it",
        evidence=evidence,
        advice=advice,
        remedy=_HELD if held else "" if advice else _REMEDIES[_kind(scheme, ratio)],
        otherwise=_REMEDIES["short"],
        gain=held or exposed,
        verify="Run again: exposed CP communication in the ledger falls, and attention takes as long as "
        "before.",
        false_alarm="Ranks that were not compared and wait for one whose pieces are longer.",
    )


def _held_up(case: Case, exposed: Gain | None) -> Gain | None:
    """What a ring beside attention saves, where it does not run there and could; else None."""
    saved = surely_saved(case, "overlapped_cp")
    if saved is None or exposed is None:
        return None
    return saved if (saved.mid_ms or 0.0) >= HELD_FRAC * (exposed.high_ms or 0.0) else None


def _scheme(case: Case) -> str | None:
    """One word; `mixed` for layers that differ; None where it is not known. Null is the ring."""
    known, value = case.setting(_TYPE)
    if not known:
        return None
    distinct = sorted({str(v) for v in value}) if isinstance(value, tuple) else [str(value or "p2p")]
    return distinct[0] if len(distinct) == 1 else "mixed"


def _kind(scheme: str | None, ratio: float | None) -> str:
    if scheme is None or scheme == "mixed":
        return scheme or "unknown"
    return "unclear" if ratio is None else "ring" if ratio <= 1.0 else "short"


def _advice(case: Case, scheme: str, cp: int, ratio: float | None) -> Iterator[Advice]:
    gain = ceiling_of_transfer(case, "cp")
    if scheme == "mixed":
        return
    if scheme in _IN_FRONT and (scheme == "a2a" or ratio is None or ratio <= 1.0):
        what = "exchanges of heads" if scheme == "a2a" else "gathers of keys and values"
        why = f"moves keys and values around a ring beside attention; {what} stand in front of it"
        yield advise(knob=_TYPE, to="p2p", why=why, gain=gain)
        return
    if scheme == "a2a" or (scheme in ("p2p", "all_gather") and (ratio is None or ratio <= 1.0)):
        return
    split = two_levels(case, cp) if scheme != "a2a+p2p" else None
    if split is not None:
        inner, outer = split
        yield advise(
            knob=_SIZES, to=split, why=f"{inner} ranks exchange heads inside a node, {outer} form rings"
        )
        yield advise(
            knob=_TYPE,
            to="a2a+p2p",
            why=f"rings of {outer} instead of {cp}: each piece of attention is longer beside as long a "
            "transfer",
            costs="the exchange of heads inside the node is exposed",
            gain=gain,
            together=(_SIZES,),
        )
        return
    smaller = covered_cp(case, cp, ratio) if ratio is not None else None
    if smaller is not None:
        yield advise(
            knob=_CP,
            to=smaller,
            why=f"the largest degree at which attention covers the ring: {per_cent(ratio or 0.0, 0)} of its "
            f"time now, {per_cent((ratio or 0.0) * (smaller - 1) / (cp - 1), 0)} then",
            costs=f"{cp // smaller} times the activations on each GPU",
            gain=gain,
        )
