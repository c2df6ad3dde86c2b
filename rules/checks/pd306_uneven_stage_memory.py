"""The fullest stage limits micro-batch size, recomputation and the parallel degrees, although other stages
have headroom."""

from perfdoc.results.figures import gib, per_cent
from perfdoc.results.memory import DeviceMemory
from perfdoc.rules.engine.advise import Advice, advise, all_or_none
from perfdoc.rules.engine.needs import Missing, Need, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes, skips
from perfdoc.rules.facts.bubble import PIPELINE
from perfdoc.rules.facts.stage_split import as_settings, layers_by_stage


def _one_stage(case: Case) -> Missing | None:
    return skipped("no memory snapshots of two known stages") if len(_peaks(case)) < 2 else None


META = Meta(
    title="One pipeline stage short of memory",
    action="Balance memory over the pipeline stages",
    sources=("megatron-core notes",),
    topic="pipeline",
    needs=(PIPELINE, Need(words="memory snapshots of two stages", missing=_one_stage)),
    advice=("pp_flexible_layout",),
)

MAX_FREE_FRAC = 0.1
"""Headroom of the fullest stage's device: with more, memory is not short."""
MAX_RATIO = 0.8
"""Peak of the emptiest stage over that of the fullest: above this, stages count as even."""


def evaluate(case: Case) -> Verdict:
    """Fires if the fullest stage has less than `MAX_FREE_FRAC` of its device as headroom, or ran out of
    memory, and another stage's peak is at most `MAX_RATIO` of its peak; as information if no allocation
    failed."""
    peaks = _peaks(case)
    fullest = max(peaks, key=lambda s: peaks[s][0])
    emptiest = min(peaks, key=lambda s: peaks[s][0])
    (most, device), (least, _) = peaks[fullest], peaks[emptiest]
    failed = bool(device.oom_events)
    evidence = [
        (f"peak of reserved memory, stage {fullest}", gib(most, 4)),
        (f"stage {emptiest}", gib(least, 4)),
    ]
    if device.headroom_bytes is None and not failed:
        return skips("the snapshot lacks the size of the device")
    free = (device.headroom_bytes or 0) / (most + (device.headroom_bytes or 0))
    if not failed and free >= MAX_FREE_FRAC:
        return passes(evidence, "the fullest stage has headroom")
    if least > MAX_RATIO * most:
        return passes(evidence)
    return fires(
        level="problem" if failed else "information",
        reason=f"stage {fullest} is full; stage {emptiest} needs {per_cent(least / most, 0)} of its peak",
        evidence=evidence,
        advice=_one_layer_less(case, fullest, emptiest, most - least),
        remedy=f"Give stage {fullest} fewer layers with pipeline_model_parallel_layout, or recompute on that "
        "stage only. With 1F1B the first stage keeps as many micro-batches in flight as there are stages, "
        "the last stage one, plus the logits.",
        verify="Take snapshots of all stages again: their peaks come closer.",
        false_alarm="Snapshots of different steps, or of start-up.",
    )


def _one_layer_less(case: Case, fullest: int, emptiest: int, apart_bytes: int) -> list[Advice]:
    """One layer of the fullest stage on the emptiest, which becomes no fuller by that. A layer takes at most
    its share of the whole stage, times the micro-batches that 1F1B keeps in flight there over those here."""
    peaks = _peaks(case)
    pp = case.job.pipeline.pp or 0
    layers = layers_by_stage(case, pp)
    if layers is None or sorted(peaks) != list(range(pp)) or layers[fullest] < 2:
        return []
    in_flight = max(1.0, (pp - emptiest) / (pp - fullest))
    if peaks[fullest][0] / layers[fullest] * in_flight > apart_bytes:
        return []
    known, mtp = case.setting("mtp_num_layers")
    if not known or (mtp is not None and not isinstance(mtp, int)):
        return []
    counts = list(layers)
    counts[fullest] -= 1
    counts[emptiest] += 1
    knobs = as_settings(case, counts, mtp or 0)
    why = f"moves one layer from stage {fullest} to stage {emptiest}, which has the memory"
    costs = f"stage {emptiest} takes longer: where it is the slowest, the others wait"
    return all_or_none(
        case,
        [
            advise(knob=knob, to=to, why=why, costs=costs, together=[k for k in knobs if k != knob])
            for knob, to in knobs.items()
        ],
    )


def _peaks(case: Case) -> dict[int, tuple[int, DeviceMemory]]:
    """Stage → its largest peak of reserved memory, and the device that had it."""
    stages = {row.rank: row.stage for row in case.job.pipeline.stages if row.rank is not None}
    found: dict[int, tuple[int, DeviceMemory]] = {}
    for device in () if case.memory is None else case.memory.devices:
        stage = None if device.rank is None else stages.get(device.rank)
        peak = device.peak_reserved_bytes
        if stage is not None and peak and peak > found.get(stage, (0, device))[0]:
            found[stage] = (peak, device)
    return found
