"""What acts on gradients that PyTorch's DistributedDataParallel reduces: it overlaps them by itself."""

from __future__ import annotations

from perfdoc.results.replay import Gain
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import predicted

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
    """Whether the replay says that neither these changes nor an overlap would save anything."""
    gain, overlap = gain_with_ddp(case), predicted(case, "overlapped_dp")
    waits = overlap is not None and (not overlap.is_predicted or (overlap.mid_ms or 0.0) > 0)
    return gain is not None and (gain.mid_ms or 0.0) <= 0 and not waits


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
        words.append("find_unused_parameters=False, if each step uses all; else static_graph=True.")
    return " ".join([*words, _ACCUMULATE])
