"""Settings of other frameworks whose value takes more than a table: batches, converters, stages."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.terms import FLOAT8_CONVERTERS, OLD_FLOAT8
from perfdoc.knobs.words import is_on
from perfdoc.records import dataclass
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.framework import has_own_file, titans_micro_batch, zero_stage

MICRO, GLOBAL = "micro_batch_size", "global_batch_size"
_STEPS, _LOCAL = "gradient_accumulation_steps", "local_batch_size"
_DYNAMIC, _TOKENS = "verl_dynamic_batch", "verl_max_tokens"
GLOBAL_BATCH_CHANGES = "the global batch changes by as much, unless accumulation over passes makes up for it"
_KEPT = "keeps the global batch"


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Another setting of the same framework, without which the first does something else."""

    knob: str
    value: Value
    why: str


@dataclass(frozen=True, kw_only=True)
class Own:
    """Whose setting, its canonical id, and the value."""

    dialect: Dialect
    knob: str
    value: Value
    beside: tuple[Beside, ...] = ()
    costs: str = ""
    """On top of what the advice costs anywhere; all that it costs where `why` is given."""
    why: str = ""
    """What it does, where that is another thing than Megatron's: a gain of Megatron's is not its own."""
    stands_alone: bool = False
    """Whether it is another quantity, and the job does not read Megatron's: then the advice is of it."""


def _zero(stage: int) -> Callable[[Case, Value], Own | str | None]:
    """At least this stage; one that is higher stays, and one that is not known too."""

    def own(case: Case, value: Value) -> Own | str | None:
        if not value:
            return None
        now = zero_stage(case.configuration)
        if now is None:
            return "the ZeRO stage is not known"
        dialect: Dialect = "deepspeed" if has_own_file(case.configuration) else "accelerate"
        return Own(dialect=dialect, knob="zero_stage", value=max(now, stage))

    return own


def _titans_float8(case: Case, value: Value) -> Own | str | None:
    """One converter more; the layers that others convert stay theirs. Older torchtitan has a switch instead,
    which a file of it names."""
    if not is_on(value):
        return None
    if "model_converters" in case.configuration.unknown:
        return "the model's converters are not known"
    known, now = case.setting("model_converters")
    have = now if known and isinstance(now, tuple) else ()
    converted = set(have) & set(FLOAT8_CONVERTERS)
    if not converted and OLD_FLOAT8 in case.configuration.unknown:
        return "whether enable_float8_linear is on is not known"
    if not converted and OLD_FLOAT8 in case.configuration.values:
        compiled = Beside(
            knob="torch_compile", value=True, why="slower than BF16 unless the model is compiled"
        )
        beside = () if case.is_set_to("torch_compile", True) else (compiled,)
        return Own(dialect="torchtitan", knob=OLD_FLOAT8, value=True, beside=beside)
    to = have if converted else (*have, FLOAT8_CONVERTERS[0])
    costs = "older torchtitan calls the converter float8"
    return Own(dialect="torchtitan", knob="model_converters", value=to, costs=costs)


def _accelerates_fp8(case: Case, value: Value) -> Own | str | None:
    if not is_on(value):
        return None
    if has_own_file(case.configuration):
        return "Accelerate refuses mixed_precision beside deepspeed_config_file"
    costs = "needs Transformer Engine, torchao or MS-AMP"
    return Own(dialect="accelerate", knob="accelerate_mixed_precision", value="fp8", costs=costs)


def _deepspeeds_batch(case: Case, value: Value) -> Own | None:
    """train_batch_size = micro-batch x accumulation x ranks: of the three DeepSpeed works out the one that is
    missing, an accumulation of 1 first."""
    if not isinstance(value, int):
        return None
    written, now = case.configuration.written, case.number(MICRO)
    own = Own(dialect="deepspeed", knob=MICRO, value=value)
    if _STEPS not in written and GLOBAL in written:
        return own
    steps = case.number(_STEPS) if _STEPS in written else 1
    beside = None
    if now and steps and now * steps % value == 0:
        beside = Beside(knob=_STEPS, value=now * steps // value, why=_KEPT)
    return _with(own, beside)


def _deepspeeds_global_batch(case: Case, value: Value) -> Own | None:
    """Beside a micro-batch and an accumulation that are set, as much more accumulation."""
    if not isinstance(value, int):
        return None
    own = Own(dialect="deepspeed", knob=GLOBAL, value=value)
    if not {MICRO, _STEPS} <= case.configuration.written:
        return own
    now, steps = case.number(GLOBAL), case.number(_STEPS)
    if not now or not steps or steps * value % now:
        return replace(own, costs="must be the micro-batch x accumulation x ranks")
    return replace(own, beside=(Beside(knob=_STEPS, value=steps * value // now, why="makes up the batch"),))


def _titans_batch(case: Case, value: Value) -> Own | str | None:
    """Without a pipeline torchtitan accumulates up to training.global_batch_size, which is the ranks' samples
    of one pass where it is not set."""
    if not isinstance(value, int):
        return None
    knob = titans_micro_batch(case.configuration)
    if knob is None:
        return "whether there is a pipeline is not known, which cuts local_batch_size once more"
    own = Own(dialect="torchtitan", knob=knob, value=value)
    if knob != _LOCAL:
        return own
    written, now, dp = case.configuration.written, case.number(_LOCAL) or case.number(MICRO), case.dp
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


WORKED_OUT: Mapping[str, Callable[[Case, Value], Own | str | None]] = MappingProxyType(
    {
        "zero_1": _zero(1),
        "zero_3": _zero(3),
        "titans_float8": _titans_float8,
        "accelerates_fp8": _accelerates_fp8,
        "deepspeeds_batch": _deepspeeds_batch,
        "deepspeeds_global_batch": _deepspeeds_global_batch,
        "titans_batch": _titans_batch,
        "verls_batch": verls_batch,
    }
)
"""By name in catalogue/words.yaml: the setting for a value of Megatron's; a text is why it cannot be had."""
