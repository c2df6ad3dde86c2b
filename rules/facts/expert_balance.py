"""Settings that spread tokens evenly over experts. They change what the model learns, not only how long it
takes."""

from collections.abc import Iterator

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.gain import Gain
from perfdoc.rules.engine.rule import Case

_KIND, _WEIGHT = "moe_router_load_balancing_type", "moe_aux_loss_coeff"
_BIAS, _CAPACITY = "moe_router_enable_expert_bias", "moe_expert_capacity_factor"
_LOSSES = ("aux_loss", "seq_aux_loss", "global_aux_loss")
_START = 0.01
"""megatron-core: `a starting value of 1e-2 is recommended`; without one the weight is 0."""
_COSTS = "changes what the model learns: compare loss curves; takes steps to work"


def balance(case: Case, gain: Gain) -> list[Advice]:
    """A balancing loss where none is on, or none is known to be on; a capacity where one is on already, or a
    bias per expert. Nothing where tokens are spread in another way.

    gain: with even experts.
    """
    kind, weight = _known(case, _KIND), _known(case, _WEIGHT)
    kinds, weights = _each(kind), [w for w in _each(weight) if isinstance(w, int | float)]
    most = max(weights, default=0)
    enough = most >= _START or (len(weights) > 1 and most > 0)  # which of several is to grow nobody knows
    if _known(case, _BIAS) is True or (enough and all(k in (None, *_LOSSES) for k in kinds)):
        return list(_capped(case, gain))
    if not all(k in (None, "none", *_LOSSES) for k in kinds):
        return []
    unknown = [knob for knob in (_KIND, _WEIGHT) if not case.setting(knob)[0]]
    if unknown and not case.setting(_BIAS)[0]:
        unknown.append(_BIAS)
    first = []
    if kinds in ((None,), ("none",)):
        why = "adds a load-balancing loss to training where experts get more tokens than others"
        cost = _COSTS if enough else ""  # else the weight's
        first.append(advise(knob=_KIND, to="aux_loss", why=why, costs=cost, gain=gain, unset=unknown))
    if enough:
        return first
    off = "at 0 nothing balances; " if weights else "unset it is 0, and nothing balances; "
    main = advise(
        knob=_WEIGHT,
        to=(_START, *weights[1:]) if len(weights) > 1 else _START,
        why=f"weighs the load-balancing loss; {'' if most else off}more of it balances sooner",
        costs=_COSTS,
        gain=gain,
        unset=unknown,
    )
    return needing(main, first)


def capacity_words(case: Case) -> str:
    """Of a capacity, a sentence without its full stop; empty where one is set."""
    if case.setting(_CAPACITY)[1] is not None:
        return ""
    return f". A capacity (`{_CAPACITY}`) works at once, and drops tokens, which may affect convergence"


def _capped(case: Case, gain: Gain) -> Iterator[Advice]:
    """At a factor of 1 the busiest rank has no more than the mean had: at least as good as even experts."""
    if case.is_set_to(_CAPACITY, None):
        yield advise(
            knob=_CAPACITY,
            to=1.0,
            why="no expert gets more than an equal part of a micro-batch's tokens",
            costs="drops the tokens above it, which may affect convergence: compare loss curves, or try 1.25",
            gain=gain,
        )


def _each(value: Value) -> tuple[object, ...]:
    """Of one of several losses, or of one alone."""
    return value if isinstance(value, tuple) else (value,)


def _known(case: Case, knob: str) -> Value:
    """Its value; None where it is unknown. Neither of them is ever null."""
    known, value = case.setting(knob)
    return value if known else None
