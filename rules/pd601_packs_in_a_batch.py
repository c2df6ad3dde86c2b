"""PD601: several packs to a micro-batch."""

from __future__ import annotations

from perfdoc.rules.case import Case
from perfdoc.rules.rule import Advice, Evidence, Meta, Verdict

META = Meta(
    code="PD601",
    title="Packed sequences in micro-batches of several",
    why="A pack is a batch already: its samples lie behind one another in one sequence. Megatron-Bridge "
    "stops where a micro-batch holds several of them.",
    sources=("seed 000", "seed 001"),
    topic="packing",
    needs=("settings",),
    advice=("pack_mbs1",),
)

_SIZE, _BATCH = "sequence_packing_size", "micro_batch_size"


def evaluate(case: Case) -> Verdict:
    """Fires where samples are packed and a micro-batch holds more than one pack."""
    size, batch = case.number(_SIZE), case.number(_BATCH)
    if size is None:
        return Verdict(state="skipped", reason=f"{_SIZE} is not known")
    if size <= 0:
        return Verdict(state="not_applicable", reason="samples are not packed")
    if batch is None:
        return Verdict(state="skipped", reason=f"{_BATCH} is not known")
    evidence = [Evidence(label="packs to a micro-batch", value=str(batch))]
    if batch <= 1:
        return Verdict(state="passes", evidence=evidence)
    advice = [
        Advice(knob=_BATCH, to=1, why="one pack is a micro-batch"),
        Advice(
            knob=_SIZE,
            to=size * batch,
            why=f"one pack of {size * batch:,} tokens holds what {batch} of {size:,} did",
            costs="the same activations; a longest sample may be longer than the model was trained for",
        ),
    ]
    return Verdict(
        state="fires",
        reason=f"a micro-batch of {batch} packs is refused",
        evidence=evidence,
        remedy=_global_batch(case, batch),
        advice=advice,
        verify="Training starts, and a step takes as many tokens as before.",
        false_alarm="A framework of your own that pads and stacks packs.",
    )


def _global_batch(case: Case, batch: int) -> str:
    now = case.number("global_batch_size")
    if now is None or now % batch:
        return f"Divide the global batch by {batch} too, or a step sees {batch} times the tokens."
    return (
        f"Set global_batch_size to {now // batch} ({now} / {batch}) too: a step then sees as many tokens "
        f"as now."
    )
