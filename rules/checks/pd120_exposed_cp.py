"""Ranks that share a sequence exchange keys and values. A ring (p2p) overlaps with attention if each piece of
attention takes longer than the transfer of the next; all-gather and all-to-all (a2a) run before attention,
exposed."""

from collections.abc import Iterator

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.gain import Gain
from perfdoc.rules.engine.needs import GPUS, WINDOW, to_give
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires
from perfdoc.rules.facts.context_parallel import (
    covered_cp,
    key_value_heads,
    transfer_over_attention,
    two_levels,
)
from perfdoc.rules.facts.degrees import heads_of
from perfdoc.rules.facts.exposed import (
    WITH_WAITS,
    ceiling_of_transfer,
    communication,
    judged,
    level_of,
    surely_saved,
)

META = Meta(
    title="Exposed context-parallel communication",
    action="Hide context-parallel communication behind attention",
    sources=("Megatron-Bridge guide", "NeMo guide", "megatron-core notes"),
    topic="long_sequence",
    time=("exposed_comm.cp",),
    with_it=WITH_WAITS,
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
BLOCKED_FRAC = 0.25
"""Of the exposed time: if the replay hides this share with the existing attention, the ring is blocked."""
_BLOCKED = (
    "Attention waits for pieces that it does not need yet: the ring does not overlap as it could. Find what "
    "blocks it, such as CUDA_DEVICE_MAX_CONNECTIONS (PD112), before changing the degree."
)
_REMEDIES = {
    "mixed": "cp_comm_type differs between layers: set p2p for the layers with exposed communication.",
    "unknown": "cp_comm_type is not known. A ring (p2p, the default) overlaps with attention, if it is not "
    "set already; a2a and all_gather run before it.",
    "ring": "Attention is long enough to hide the ring: find what blocks it, such as "
    "CUDA_DEVICE_MAX_CONNECTIONS (PD112), or ranks with uneven pieces of a packed batch.",
    "unclear": "Attention time is not known, so neither is whether it could hide the transfer: add NVTX or "
    "record_function ranges to the model's parts.",
    "short": "Attention is too short to hide the transfer and no other split is known to fit: less context "
    "parallelism, or longer sequences, hide more.",
}


def evaluate(case: Case) -> Verdict:
    """Fires at `exposed.MIN_FRAC` of the window, mean over ranks: as a problem if the scheme is known not to
    overlap (a2a, all_gather) or next to nothing is hidden. No other degree or scheme is advised if the replay
    finds that the ring is only blocked."""
    nothing, evidence = judged(case, "cp")
    if nothing is not None:
        return nothing
    scheme, cp, exposed = _scheme(case), case.degree(_CP), ceiling_of_transfer(case, "cp")
    ratio = transfer_over_attention(case)
    if scheme is not None:
        evidence.append(("scheme (cp_comm_type)", scheme))
    if scheme == "all_gather" and (heads := heads_of(case)) and (shared := key_value_heads(case)):
        gathered = f"{shared} of {heads}: {per_cent(shared / heads, 0)} of the bytes of all heads"
        evidence.append(("key and value heads gathered, of query heads", gathered))
    if ratio is not None:
        evidence.append(("CP communication over attention time", per_cent(ratio, 0)))
    blocked = _blocked(case, exposed) if scheme in ("p2p", None) else None
    advice = [] if cp is None or scheme is None or blocked else list(_advice(case, scheme, cp, ratio))
    return fires(
        level=level_of(case, "cp", switched_off=scheme in _IN_FRONT),
        reason="not hidden by attention",
        evidence=evidence,
        advice=advice,
        remedy=_BLOCKED if blocked else "" if advice else _in_words(case, _kind(scheme, ratio)),
        otherwise=_REMEDIES["short"],
        gain=blocked or exposed,
        verify="Run again: exposed CP communication in the ledger falls, and attention time stays the same.",
        false_alarm="Waiting for a rank with longer pieces, if ranks were not compared.",
    )


def _blocked(case: Case, exposed: Gain | None) -> Gain | None:
    """The predicted gain of overlapping the ring with attention, if it is large enough; else None."""
    saved = surely_saved(case, "overlapped_cp")
    if saved is None or exposed is None:
        return None
    return saved if (saved.mid_ms or 0.0) >= BLOCKED_FRAC * (exposed.high_ms or 0.0) else None


def _scheme(case: Case) -> str | None:
    """cp_comm_type; `mixed` if layers differ; None if unknown. Null is the ring."""
    known, value = case.setting(_TYPE)
    if not known:
        return None
    distinct = sorted({str(v) for v in value}) if isinstance(value, tuple) else [str(value or "p2p")]
    return distinct[0] if len(distinct) == 1 else "mixed"


def _kind(scheme: str | None, ratio: float | None) -> str:
    if scheme is None or scheme == "mixed":
        return scheme or "unknown"
    return "unclear" if ratio is None else "ring" if ratio <= 1.0 else "short"


def _in_words(case: Case, kind: str) -> str:
    give = f" To be sure, {to_give(case, _TYPE)}." if kind == "unknown" else ""
    return f"{_REMEDIES[kind]}{give}"


def _layer_by_layer(case: Case, gain: Gain | None) -> Iterator[Advice]:
    """The ring in the layers whose scheme runs before attention; the others keep theirs."""
    layers = case.setting(_TYPE)[1]
    if not isinstance(layers, tuple) or not set(layers) & set(_IN_FRONT):
        return
    to = tuple("p2p" if layer in _IN_FRONT else str(layer) for layer in layers)
    count = sum(layer in _IN_FRONT for layer in layers)
    why = f"a ring in the {count} layers whose exchange runs before attention"
    yield advise(knob=_TYPE, to=to if len(set(to)) > 1 else to[0], why=why, gain=gain)


def _advice(case: Case, scheme: str, cp: int, ratio: float | None) -> Iterator[Advice]:
    gain = ceiling_of_transfer(case, "cp")
    if scheme == "mixed":
        yield from _layer_by_layer(case, gain)
        return
    if scheme in _IN_FRONT and (scheme == "a2a" or ratio is None or ratio <= 1.0):
        what = "all-to-alls of heads" if scheme == "a2a" else "all-gathers of keys and values"
        why = f"a ring overlaps keys and values with attention; {what} run before it, exposed"
        yield advise(knob=_TYPE, to="p2p", why=why, gain=gain)
        return
    if scheme == "a2a" or (scheme in ("p2p", "all_gather") and (ratio is None or ratio <= 1.0)):
        return
    split = two_levels(case, cp) if scheme != "a2a+p2p" else None
    if split is not None:
        inner, outer = split
        yield advise(
            knob=_SIZES, to=split, why=f"all-to-all over {inner} ranks inside a node, rings of {outer} across"
        )
        yield advise(
            knob=_TYPE,
            to="a2a+p2p",
            why=f"rings of {outer} instead of {cp}: longer attention pieces, transfers of the same length",
            costs="the all-to-all inside the node is exposed",
            gain=gain,
            together=(_SIZES,),
        )
        return
    smaller = covered_cp(case, cp, ratio) if ratio is not None else None
    if smaller is not None:
        yield advise(
            knob=_CP,
            to=smaller,
            why=f"the largest degree at which attention hides the ring: {per_cent(ratio or 0.0, 0)} of "
            f"attention time now, {per_cent((ratio or 0.0) * (smaller - 1) / (cp - 1), 0)} then",
            costs=f"{cp // smaller} times the activations per GPU",
            gain=gain,
        )
