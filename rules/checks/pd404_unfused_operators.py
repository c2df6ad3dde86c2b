"""Each of a chain of element-wise kernels reads and writes the whole tensor; one fused kernel does so once,
and is one launch."""

from collections.abc import Iterator

from perfdoc.results.figures import gib, per_cent
from perfdoc.results.kernels import UnfusedPattern
from perfdoc.results.names import opening
from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.assumptions import EAGER, ENGINE, FLASH, Assumes
from perfdoc.rules.engine.gain import Gain, Of, RankMeasurement, time_share
from perfdoc.rules.engine.needs import GPUS, WINDOW, Missing, Need, skipped
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, informs, passes
from perfdoc.rules.facts.capture import KERNELS
from perfdoc.rules.facts.fusions import FUSIONS, IMPL, LOSS, known_off
from perfdoc.rules.facts.graphs import without_kernels
from perfdoc.rules.facts.memory_need import cp_of, micro_batch_of, tp_of


def _unmeasured(case: Case) -> Missing | None:
    parts = (r.kernel_parts for r in case.ranks if r.kernel_parts.state != "measured")
    return next((skipped(found.reason) for found in parts), None)


META = Meta(
    title="Operators that are not fused",
    action="Fuse element-wise operators",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide", "megatron-core notes"),
    topic="fusion",
    needs=(GPUS, KERNELS, Need(words="classified kernels", missing=_unmeasured), WINDOW),
    advice=("fus_all_on", "fus_verl_defaults", "fus_ce_te", "mlm_30", "mlm_32", "mlm_33", "mlm_34", "mlm_35"),
    assumes=(
        Assumes(of=EAGER, words="torch.compile"),
        Assumes(of=ENGINE, words="Transformer Engine's"),
        Assumes(of=ENGINE, words="Transformer Engine"),
        Assumes(of=FLASH, words="flash-attn"),
    ),
    for_servers=True,
)

MIN_FRAC = 0.01
"""Of the window, mean over ranks: kernels of sequences that one kernel would replace."""
_ATTENTION = "masked_softmax"
"""Of PD405."""
_MOST = "the time of these kernels, less a third of the longest of each chain: the fused kernel's"
_BY_HAND = {
    "rms_norm_by_hand": "take a norm that is one kernel (torch.nn.RMSNorm, Transformer Engine's)",
    "swiglu": "write the gated activation as one kernel (torch.compile, Liger, Transformer Engine)",
    "bias_gelu": "write bias and GELU as one kernel (torch.compile, Transformer Engine)",
    "rotary_embedding": "take a fused rotary embedding (Transformer Engine, flash-attn)",
    "bias_dropout_add": "write bias, dropout and residual as one kernel (torch.compile)",
    "cross_entropy": "take a fused cross entropy (Transformer Engine, Liger)",
    "gradient_accumulation": "let the weight gradient's GEMM add into the gradient, or accumulate less often",
}
"""For trainers whose settings are not known."""


def evaluate(case: Case) -> Verdict:
    """Fires where such sequences take `MIN_FRAC` of the window; as information where none is seen and a
    fusion is known to be off."""
    share, evidence = time_share(case, "sequences that one kernel would replace", _time_of())
    off = [k for k, (_, applies) in FUSIONS.items() if applies(case) and known_off(case, k)]
    if share >= MIN_FRAC:
        return _measured(case, evidence, off)
    if not off:
        return passes(evidence)
    said = "; verl's files leave unset fusions off" if case.configuration.dialect == "verl" else ""
    return informs(
        reason=f"fusions are off, though no kernels were recognised that they would replace{said}",
        evidence=evidence,
        advice=[a for knob in off for a in _switch(case, knob)],
        verify="Run again: element-wise kernels are fewer and take less of the window.",
        false_alarm="Layers of Transformer Engine, or compiled ones, are fused whatever these settings say.",
    )


def _measured(case: Case, evidence: list[Evidence], off: list[str]) -> Verdict:
    found = _patterns(case)
    of = f" of the {case.unit}"
    evidence += ((f"{name.replace('_', ' ')}, {n:,} times", per_cent(p) + of) for name, _, n, p in found)
    ours = case.framework == "megatron"
    switches = list(dict.fromkeys(knob for _, knob, _, _ in found if knob))
    on = [knob for knob in switches if case.is_set_to(knob, True)]
    wanted = [knob for knob in switches if ours and knob not in on]
    knobs = [k for k in dict.fromkeys([*wanted, *off]) if k in FUSIONS and FUSIONS[k][1](case)]
    words = [_BY_HAND[name] for name, knob, _, _ in found if name in _BY_HAND and (knob is None or not ours)]
    if on:
        words.append(
            f"although {', '.join(sorted(on))} is on, these kernels are still separate: check that Apex or "
            "Transformer Engine is installed, and the log for a fallback"
        )
    by_hand = f"{'; '.join(words)}." if words else ""
    return fires(
        reason="chains of small kernels do what one fused kernel does",
        evidence=evidence,
        remedy=opening(by_hand),
        advice=[a for knob in knobs for a in _switch(case, knob, _bound(case, knob), seen=knob in wanted)],
        gain=_bound(case),
        verify="Run again: the sequences are gone from the list of unfused patterns.",
        false_alarm="A sequence in code that runs once in many steps.",
    )


def _patterns(case: Case) -> list[tuple[str, str | None, int, float]]:
    """(pattern, knob, count, share) of every one but attention's, by falling share."""
    rows = {u.pattern: u.knob for r in case.ranks for u in _chosen(r)}
    found = []
    for pattern, knob in rows.items():
        count = sum(u.count for r in case.ranks for u in _chosen(r, pattern=pattern))
        found.append((pattern, knob, count, case.share(_time_of(pattern)) or 0.0))
    return sorted(found, key=lambda f: (-f[3], f[0]))


def _time_of(pattern: str = "") -> Of:
    """Time of the sequences of a pattern; of all but attention's without one."""
    return lambda rank: min(sum(u.total_ns for u in _chosen(rank, pattern=pattern)), rank.ledger.compute)


def _bound(case: Case, knob: str = "") -> Gain | None:
    """The most that fused kernels save, of one knob or of all."""

    def saved_ns(rank: RankMeasurement) -> int:
        return min(sum(u.total_ns - u.stays_ns for u in _chosen(rank, knob)), rank.ledger.compute)

    return without_kernels(case, saved_ns, lambda r: sum(u.apart_ns for u in _chosen(r, knob)), _MOST)


def _chosen(rank: RankMeasurement, knob: str = "", pattern: str = "") -> Iterator[UnfusedPattern]:
    for u in rank.kernel_parts.unfused:
        if u.pattern != _ATTENTION and knob in ("", u.knob) and pattern in ("", u.pattern):
            yield u


def _switch(case: Case, knob: str, gain: Gain | None = None, *, seen: bool = True) -> list[Advice]:
    """The switch, with at most the time of its sequences to gain."""
    why = FUSIONS[knob][0] + (
        "" if seen else "; off, though no kernels that it replaces were recognised here"
    )
    gain = gain if gain is not None and gain.high_ms else None
    if knob != LOSS:
        return [advise(knob=knob, to=True, why=why, gain=gain)]
    size = _logits_bytes(case)
    saved = "" if size is None else f"; a copy of the logits in fp32 is {gib(size)} here"
    costs = "results are not bitwise reproducible"
    loss = advise(knob=knob, to=True, why=why + saved, costs=costs, gain=gain)
    te = advise(knob=IMPL, to="te", why="Transformer Engine's kernel instead of compiled PyTorch", gain=gain)
    return [te] if case.configuration.dialect == "verl" else [loss, te]  # verl's own fusion has no such name


def _logits_bytes(case: Case) -> int | None:
    """A micro-batch's logits in fp32 on one rank."""
    model, size, tp, cp = case.job.facts.model, micro_batch_of(case), tp_of(case), cp_of(case)
    if model is None or not size or not tp or not cp:
        return None
    return 4 * size * model.sequence_length * model.vocabulary // (tp * cp)
