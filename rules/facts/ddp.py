"""What acts on gradients that PyTorch's DistributedDataParallel reduces: it overlaps them by itself."""

from __future__ import annotations

from perfdoc.results.replay import Gain
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import predicted
from perfdoc.simulator.replay.edits.rewiring import WAITS_FOR_NONE

ACTION = "Send DDP's gradients in other buckets, or in half the bytes"
NOTHING_GAINED = (
    "DDP overlaps it already, and neither other buckets nor half the bytes save time in the replay: the step "
    "hardly waits for it"
)
_CHANGES = ("buckets_x4", "buckets_x0.25", "dp_half_bytes")
_ACCUMULATE = "With gradient accumulation: no_sync() on all micro-batches but the last."


def reduces_with_ddp(case: Case) -> bool:
    """Whether captures of plain PyTorch show DDP's own ranges or operators."""
    return case.framework == "pytorch" and any(capture.ddp is not None for capture in case.captures)


def gain_with_ddp(case: Case) -> Gain | None:
    """Of the best change of buckets or bytes; None where none was replayed."""
    gain = predicted(case, *_CHANGES)
    return gain if gain is not None and gain.is_predicted else None


def gains_nothing(case: Case) -> bool:
    """Whether the replay says that none of these changes would save anything, nor an overlap: each by a
    prediction of its own, or, of the overlap, because there it is."""
    overlap = case.prediction("overlapped_dp")
    if overlap is None or not (_is_nothing(overlap.gain) or overlap.reason == WAITS_FOR_NONE.format("dp")):
        return False
    found = [case.prediction(key) for key in _CHANGES]
    return all(p is not None and _is_nothing(p.gain) for p in found)


def _is_nothing(gain: Gain) -> bool:
    return gain.is_predicted and (gain.mid_ms or 0.0) <= 0


def settings_of_ddp(case: Case, better: str) -> str:
    """What to set, in words. better: which buckets the replay prefers; empty where none."""
    rows = [row for rank in case.ranks for row in rank.communication if row.dimension == "dp"]
    words = [
        f"bucket_cap_mb for {better} messages (25 by default)."
        if better
        else "bucket_cap_mb (25 by default): more for fewer messages, less for earlier ones."
    ]
    if any(row.element_type == "f32" and row.collective == "all_reduce" for row in rows):
        hook = "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
        words.append(f"{hook}: half the bytes; compare the loss.")
    if any(packing.kind == "gradients" for rank in case.ranks for packing in rank.packing):
        words.append("gradient_as_bucket_view=True: no copies out of buckets.")
    if any(capture.ddp is not None and capture.ddp.searches for capture in case.captures):
        words.append(
            "find_unused_parameters=False, if each step uses all; static_graph=True, if all skip the same."
        )
    return " ".join([*words, _ACCUMULATE])
