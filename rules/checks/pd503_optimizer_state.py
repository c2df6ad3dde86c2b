"""A master in fp32 repeats the 16 bits of its bf16 weight. Kept without them it is exact all the same, and 2
bytes of each sharded parameter are free."""

from perfdoc.results.figures import gib
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import Missing, Need, applies, not_applicable, setting
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, informs, passes
from perfdoc.rules.facts.degrees import uses_fsdp
from perfdoc.rules.facts.memory_need import cp_of, device_bytes, parameters_per_rank
from perfdoc.rules.facts.memory_room import MIN_FREE_FRAC, rooms, tightest
from perfdoc.rules.facts.precision import why_no_remainders

_AWARE, _SHARDED = "use_precision_aware_optimizer", "use_distributed_optimizer"


def _no_remainders(case: Case) -> Missing | None:
    """Whether masters could be kept without these bits matters only where they are not so yet."""
    why_not = "" if case.setting(_AWARE)[1] else why_no_remainders(case)
    return not_applicable(why_not) if why_not else None


META = Meta(
    title="Masters that repeat the weights",
    action="Drop masters that repeat the weights",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="memory",
    needs=(
        applies("no FSDP", lambda case: not uses_fsdp(case), "FSDP shards the optimizer's state itself"),
        setting(_SHARDED),
        applies(
            "a sharded optimizer",
            lambda case: bool(case.setting(_SHARDED)[1]),
            "the optimizer is whole on each rank: see PD312 first",
        ),
        setting(_AWARE),
        Need(words="masters that repeat bf16 weights", missing=_no_remainders),
    ),
    advice=("mem_precision_aware",),
)

REMAINDER_BYTES = 2
"""Of a parameter's fp32 master, which the bf16 weight holds already."""
MIN_SAVED_FRAC = 0.005
"""Of the GPU's memory: less is not worth a switch."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where a sharded optimizer is known to keep masters that repeat the bf16 weights,
    unless that is known to be less than `MIN_SAVED_FRAC` of the memory, or memory is known to be left over
    (PD505)."""
    if case.setting(_AWARE)[1]:
        return passes(reason="the state is sharded and repeats no part of the weights")
    saved = _saved_bytes(case)
    if why_not := _not_worth_it(case, saved):
        return passes(_evidence(case, saved), why_not)
    less = "" if saved is None else f", about {gib(saved)} less on each GPU"
    why = f"a master keeps only the 16 bits that the bf16 weight lacks{less}; exact"
    return informs(
        reason="masters in fp32 repeat the bits of the bf16 weights",
        evidence=_evidence(case, saved),
        frees_bytes=saved,
        advice=[advise(knob=_AWARE, to=True, why=why, costs="needs Transformer Engine 2.1 or later")],
        verify="Record a snapshot: the optimizer's part of the peak is smaller.",
        false_alarm="Free memory: then nothing is gained.",
    )


def _saved_bytes(case: Case) -> int | None:
    """Of each GPU: the optimizer is sharded over data- and context-parallel ranks. 2^30 parameters, DP 4:
    2^30 x 2 / 4 = 512 MiB."""
    count, dp, cp = parameters_per_rank(case), case.dp, cp_of(case)
    return None if count is None or not dp or not cp else round(count * REMAINDER_BYTES / (dp * cp))


def _not_worth_it(case: Case, saved: int | None) -> str:
    """Why it would do nothing to speak of; empty where it would, or nobody knows."""
    memory = device_bytes(case)
    if saved is not None and memory is not None and saved < MIN_SAVED_FRAC * memory:
        return f"{gib(saved)} of each GPU would be free, next to nothing of {gib(memory)}"
    room = tightest(case)
    if room is None or room.free_bytes is None or not room.total_bytes or room.failed:
        return ""
    enough = room.free_bytes >= MIN_FREE_FRAC * room.total_bytes
    return "memory is left over as it is (PD505)" if enough else ""


def _evidence(case: Case, saved: int | None) -> list[Evidence]:
    found = []
    if saved is not None:
        found.append(("saved on each GPU, by formula", gib(saved)))
    held = max((r.category_bytes("optimizer") for r in rooms(case)), default=0)
    if held:
        found.append(("optimizer state at the peak, at least", gib(held)))
    return found
