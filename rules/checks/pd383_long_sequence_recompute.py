"""Activations grow with the sequence. Full recomputation makes room by computing each layer's forward pass
again, up to a third more work; context parallelism divides activations and repeats nothing."""

import re
from collections.abc import Iterator
from dataclasses import replace

from perfdoc.analyzers.memory.formula import need_bytes
from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.gain import at_most, bounded, predicted
from perfdoc.rules.engine.needs import Missing, Need, given, known, not_applicable
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, informs, passes, skips
from perfdoc.rules.facts.context_parallel import sequence_allows
from perfdoc.rules.facts.degrees import degrees_of, sequence_of
from perfdoc.rules.facts.memory_need import FIT_FRAC, batch_of, device_bytes
from perfdoc.rules.facts.memory_relief import again_ns, is_needless, without_again


def _short(case: Case) -> Missing | None:
    length = sequence_of(case) or 0
    return not_applicable(f"sequences of {length:,} tokens are not long") if length < MIN_TOKENS else None


META = Meta(
    title="Full recomputation for long sequences",
    action="Split long sequences instead of recomputing all",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide"),
    topic="long_sequence",
    needs=(known("the length of sequences", sequence_of), Need(words="long sequences", missing=_short)),
    advice=("ls_problem", "cp_ssm", "pm_table_long_seq", "ls_recompute_offload"),
)

MIN_TOKENS = 8192
"""Tokens of a sequence from which on guides see a use for context parallelism."""
MIN_FRAC = 0.05
"""Of the window, mean over ranks: kernels that compute a forward pass again."""
_FACTORS = (2, 4, 8, 16)
"""By which context parallelism may grow."""
_CP, _GRANULARITY = "context_parallel_size", "recompute_granularity"
_STATE_SPACE = r"(?i)chunk_scan|chunk_state|selective_scan|state_passing"


def evaluate(case: Case) -> Verdict:
    """Fires, as information, for sequences of `MIN_TOKENS` or more where recomputation takes `MIN_FRAC` of
    the window, unless it is known to be needless as the job is (PD504). What more context parallelism costs
    was not measured."""
    length = given(sequence_of(case))
    known, granularity = case.setting(_GRANULARITY)
    times = [rank.kernel_parts.recompute_ns for rank in case.ranks]
    share = None if not times or None in times else case.share(again_ns)
    evidence = [("tokens of a sequence", f"{length:,}")]
    if any(re.search(_STATE_SPACE, k.name) for rank in case.ranks for k in rank.kernel_times):
        evidence.append(("state-space layers", "yes: context parallelism divides these too"))
    if share is not None:
        evidence.append(("computed again, mean over ranks", per_cent(share)))
    if share is not None and share >= MIN_FRAC:
        if is_needless(case):
            return passes(evidence, "memory does not require it: see PD504")
        return _recomputes(case, granularity if known else None, evidence)
    if known and granularity is None:
        return passes(evidence, "nothing is recomputed")
    if share is None:
        return skips("what is computed again is not known", evidence)
    return passes(evidence)


def _recomputes(case: Case, granularity: object, evidence: list[Evidence]) -> Verdict:
    gain = at_most(predicted(case, "without_recompute"), "what context parallelism costs is not in it")
    gain = bounded(gain, without_again(case))
    return informs(
        reason=f"{'layers' if granularity == 'full' else 'parts of layers'} are computed twice so that their "
        "activations need not be kept",
        evidence=evidence,
        advice=list(_advice(case, granularity)),
        remedy="Where context parallelism does not fit, recompute only what is cheap (recompute_modules), or "
        "offload activations to the host where the link is fast.",
        gain=gain,
        verify="Run again: the recompute share falls, the peak of memory stays below the device's, and "
        "exposed CP communication stays small.",
        false_alarm="Memory that is short for weights and optimizer states, which context parallelism "
        "divides less than activations.",
    )


def _wider(case: Case) -> int | None:
    """The least context-parallel degree above the present one whose activations are estimated to fit without
    recomputing layers; twice the present one where nothing can be estimated."""
    cp, dp = case.degree(_CP), case.dp
    if cp is None or dp is None:
        return None
    fits = (f * cp for f in _FACTORS if dp % f == 0 and sequence_allows(case, f * cp))
    return next((to for to in fits if _fits_whole(case, to)), None)


def _fits_whole(case: Case, cp: int) -> bool:
    """Whether nothing that is known speaks against it."""
    now, shape, memory = degrees_of(case), case.job.facts.model, device_bytes(case)
    then = None if now is None else now.with_model_parallel(tp=now.tp, pp=now.pp, cp=cp)
    batch = None if then is None else batch_of(case, then)
    if then is None or batch is None or shape is None or memory is None or shape.layers < 1:
        return True
    need = need_bytes(shape, then, replace(batch, recompute=False))
    return need is not None and need <= FIT_FRAC * memory


def _advice(case: Case, granularity: object) -> Iterator[Advice]:
    cp, dp, to = case.degree(_CP), case.dp, _wider(case)
    if cp is None or dp is None or to is None:
        return
    ranks = advise(
        knob=_CP,
        to=to,
        why=f"divides the activations of each GPU by {to // cp} without computing anything twice",
        costs=f"data parallelism becomes {dp * cp // to}, and keys and values are exchanged",
    )
    then = []
    if granularity == "full":
        less = advise(
            knob=_GRANULARITY,
            to="selective",
            why="computes only parts of a layer again, which is cheap next to GEMMs",
            costs="more memory for activations, for which context parallelism makes up",
        )
        belong = [
            advise(knob=knob, to=None, why="belongs to full recomputation")
            for knob in ("recompute_method", "recompute_num_layers")
            if case.setting(knob) not in ((False, None), (True, None))
        ]
        then = needing(less, then=belong)
    yield from needing(ranks, then=then)
