"""Another micro-batch under the frameworks in which the global batch follows from it."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.counterpart import Beside, Own
from perfdoc.rules.facts.titans_micro_batch import titans_micro_batch

MICRO, GLOBAL, STEPS, LOCAL = (
    *("micro_batch_size", "global_batch_size"),
    *("gradient_accumulation_steps", "local_batch_size"),
)
_DYNAMIC, _TOKENS = "verl_dynamic_batch", "verl_max_tokens"
GLOBAL_BATCH_CHANGES = "the global batch changes by as much, unless accumulation over passes makes up for it"
_KEPT = "keeps the global batch"


def deepspeeds_batch(case: Case, value: Value) -> Own | None:
    """train_batch_size = micro-batch x accumulation x ranks: of the three DeepSpeed works out the one that is
    missing, an accumulation of 1 first."""
    if not isinstance(value, int):
        return None
    written, now = case.configuration.written, case.number(MICRO)
    own = Own(dialect="deepspeed", knob=MICRO, value=value)
    if STEPS not in written and GLOBAL in written:
        return own
    steps = case.number(STEPS) if STEPS in written else 1
    beside = None
    if now and steps and now * steps % value == 0:
        beside = Beside(knob=STEPS, value=now * steps // value, why=_KEPT)
    return _with(own, beside)


def deepspeeds_global_batch(case: Case, value: Value) -> Own | None:
    """Beside a micro-batch and an accumulation that are set, as much more accumulation."""
    if not isinstance(value, int):
        return None
    own = Own(dialect="deepspeed", knob=GLOBAL, value=value)
    if not {MICRO, STEPS} <= case.configuration.written:
        return own
    now, steps = case.number(GLOBAL), case.number(STEPS)
    if not now or not steps or steps * value % now:
        return replace(own, costs="must be the micro-batch x accumulation x ranks")
    return replace(own, beside=(Beside(knob=STEPS, value=steps * value // now, why="makes up the batch"),))


def titans_batch(case: Case, value: Value) -> Own | str | None:
    """Without a pipeline torchtitan accumulates up to training.global_batch_size, which is the ranks' samples
    of one pass where it is not set."""
    if not isinstance(value, int):
        return None
    knob = titans_micro_batch(case.configuration)
    if knob is None:
        return "whether there is a pipeline is not known, which cuts local_batch_size once more"
    own = Own(dialect="torchtitan", knob=knob, value=value)
    if knob != LOCAL:
        return own
    written, now, dp = case.configuration.written, case.number(LOCAL) or case.number(MICRO), case.dp
    if GLOBAL in written and case.number(GLOBAL):
        return own
    if not now or not dp or GLOBAL in written or now % value:
        return _with(own, None)
    return _with(own, Beside(knob=GLOBAL, value=now * dp, why=_KEPT))


def verls_batch(case: Case, value: Value) -> Own | str | None:
    """By samples, unless verl fills micro-batches up to a number of tokens: then as many times the tokens."""
    if not isinstance(value, int):
        return None
    if _DYNAMIC in case.configuration.unknown:
        return "whether use_dynamic_bsz is on, with which micro-batches are cut by tokens, is not known"
    if not case.is_set_to(_DYNAMIC, True):
        return Own(dialect="verl", knob=MICRO, value=value)
    now, tokens = case.number(MICRO), case.number(_TOKENS)
    if not now or not tokens:
        return "ppo_max_token_len_per_gpu, by which use_dynamic_bsz cuts micro-batches, is not known"
    own = Own(dialect="verl", knob=_TOKENS, value=tokens * value // now, stands_alone=True)
    longest = "must hold the longest sample: max_prompt_length + max_response_length"
    return replace(own, costs=longest) if value < now else own


def _with(own: Own, beside: Beside | None) -> Own:
    return replace(own, costs=GLOBAL_BATCH_CHANGES) if beside is None else replace(own, beside=(beside,))
