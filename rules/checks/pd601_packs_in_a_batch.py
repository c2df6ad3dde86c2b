"""A pack is a batch already: its samples lie behind one another in one sequence. Megatron-Bridge stops where
a micro-batch holds several of them."""

from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.needs import applies, given, known
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes

_SIZE, _BATCH = "sequence_packing_size", "micro_batch_size"

META = Meta(
    title="Packed sequences in micro-batches of several",
    action="Use micro-batches of one pack",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="packing",
    needs=(
        known(f"`{_SIZE}`", lambda case: case.number(_SIZE), reason=f"{_SIZE} is not known"),
        applies("packed samples", lambda case: (case.number(_SIZE) or 0) > 0, "samples are not packed"),
        known(f"`{_BATCH}`", lambda case: case.number(_BATCH), reason=f"{_BATCH} is not known"),
    ),
    advice=("pack_mbs1",),
)


def evaluate(case: Case) -> Verdict:
    """Fires where samples are packed and a micro-batch holds more than one pack."""
    size, batch = given(case.number(_SIZE)), given(case.number(_BATCH))
    evidence = [("packs to a micro-batch", str(batch))]
    if batch <= 1:
        return passes(evidence)
    pack = (
        advise(knob=_BATCH, to=1, why="one pack is a micro-batch"),
        advise(
            knob=_SIZE,
            to=size * batch,
            why=f"one pack of {size * batch:,} tokens holds what {batch} of {size:,} did",
            costs="the same activations; a longest sample may be longer than the model was trained for",
        ),
    )
    return fires(
        reason=f"a micro-batch of {batch} packs is refused",
        evidence=evidence,
        remedy=_in_words(case, size, batch),
        advice=[*pack, *_global_batch(case, batch)],
        verify="Training starts, and a step takes as many tokens as before.",
        false_alarm="A framework of your own that pads and stacks packs.",
    )


def _global_batch(case: Case, batch: int) -> list[Advice]:
    now = case.number("global_batch_size")
    if now is None or now % batch:
        return []
    why = f"{now} / {batch} packs, each as long as {batch} before: a step sees as many tokens as now"
    return [advise(knob="global_batch_size", to=now // batch, why=why)]


def _in_words(case: Case, size: int, batch: int) -> str:
    words = []
    if not _global_batch(case, batch):
        words.append(f"Divide the global batch by {batch} too, or a step sees {batch} times the tokens.")
    length = case.number("seq_length")
    if length is not None and length < size * batch:
        words.append(f"The model's sequence length has to grow with the packs, from {length:,}.")
    return " ".join(words)
