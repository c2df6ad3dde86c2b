"""PD503: optimizer state that is held more than once, or wider than it has to be."""

from __future__ import annotations

from perfdoc.rules.case import Case
from perfdoc.rules.memory_room import gib, rooms
from perfdoc.rules.model_memory import STATE_BYTES, parameters_per_rank
from perfdoc.rules.rule import Advice, Evidence, Meta, Verdict

META = Meta(
    code="PD503",
    title="Optimizer state larger than it has to be",
    why="Masters and moments are 12 bytes of a parameter, six times a 16-bit weight. Held whole on every "
    "rank, they force more sharding or a smaller micro-batch than the model needs.",
    sources=("seed 000", "seed 001", "seed 003"),
    topic="memory",
    needs=("settings",),
    advice=("mem_distopt_od", "mem_precision_aware"),
)

REMAINDER_BYTES = 2
"""Of a parameter's fp32 master, which the bf16 weight holds already."""
_AWARE, _SHARDED = "use_precision_aware_optimizer", "use_distributed_optimizer"


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where the optimizer is known to be whole on each of several data-parallel ranks,
    or sharded with masters that repeat the bf16 weights."""
    known, sharded = case.setting(_SHARDED)
    if any(case.is_set_to(name, True) for name in ("use_megatron_fsdp", "use_torch_fsdp2")):
        return Verdict(state="not_applicable", reason="FSDP shards the optimizer's state itself")
    if not known:
        return Verdict(state="skipped", reason=f"{_SHARDED} is not known")
    if case.dp is None:
        return Verdict(state="skipped", reason="the data-parallel degree is not known")
    if sharded is False:
        return _whole(case, case.dp)
    return _wide(case, case.dp)


def _whole(case: Case, dp: int) -> Verdict:
    if dp == 1:
        return Verdict(state="not_applicable", reason="one data-parallel rank has nobody to share with")
    saved = _bytes(case, STATE_BYTES * (1 - 1 / dp))
    why = f"each rank holds a {dp}th of masters and moments{_of(saved)}"
    costs = "the weights are gathered after each step; the sum of traffic is that of an all-reduce"
    return Verdict(
        state="fires",
        level="information",
        reason=f"{dp} data-parallel ranks hold the same optimizer state",
        evidence=_evidence(case, saved),
        advice=[Advice(knob=_SHARDED, to=True, why=why, costs=costs)],
        verify="Record a snapshot: the optimizer's part of the peak is smaller.",
        false_alarm="An optimizer that cannot be sharded, such as one that needs whole matrices (muon).",
    )


def _wide(case: Case, dp: int) -> Verdict:
    known, aware = case.setting(_AWARE)
    if not known:
        return Verdict(state="skipped", reason=f"{_AWARE} is not known")
    if aware:
        return Verdict(state="passes", reason="the state is sharded and repeats no part of the weights")
    if not case.is_set_to("bf16", True) and case.job.facts.dtype not in ("bf16", "fp8"):
        return Verdict(
            state="not_applicable", reason="weights are not known to be bf16, whose bits masters share"
        )
    saved = _bytes(case, REMAINDER_BYTES / dp)
    why = f"a master keeps only the 16 bits that the bf16 weight lacks{_of(saved)}; exact"
    return Verdict(
        state="fires",
        level="information",
        reason="masters in fp32 repeat the bits of the bf16 weights",
        evidence=_evidence(case, saved),
        advice=[Advice(knob=_AWARE, to=True, why=why, costs="needs Transformer Engine 2.1 or later")],
        verify="Record a snapshot: the optimizer's part of the peak is smaller.",
        false_alarm="Memory to spare: then nothing is gained.",
    )


def _bytes(case: Case, each: float) -> int | None:
    count = parameters_per_rank(case)
    return None if count is None else round(count * each)


def _of(saved: int | None) -> str:
    return "" if saved is None else f", about {gib(saved)} less on each GPU"


def _evidence(case: Case, saved: int | None) -> list[Evidence]:
    found = []
    if saved is not None:
        found.append(Evidence(label="saved on each GPU, by formula", value=gib(saved)))
    held = max((r.category_bytes("optimizer") for r in rooms(case)), default=0)
    if held:
        found.append(Evidence(label="optimizer state at the peak, at least", value=gib(held)))
    return found
