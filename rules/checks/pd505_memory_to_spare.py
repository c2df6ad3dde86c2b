"""Memory buys larger kernels (a larger micro-batch), less recomputation, or less model parallelism; left
over, it buys nothing."""

from perfdoc.results.figures import gib, per_cent
from perfdoc.rules.engine.needs import GPUS, Missing, Need, given, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.bubble import fits_doubled, larger
from perfdoc.rules.facts.memory_need import cp_of, pp_of, tp_of
from perfdoc.rules.facts.memory_room import MIN_FREE_FRAC, tightest, why_unknown


def _unknown(case: Case) -> Missing | None:
    room = tightest(case)
    if room is None or not room.total_bytes or room.free_bytes is None:
        return skipped(why_unknown(case))
    return None


META = Meta(
    title="GPU memory left over",
    action="Spend the free GPU memory",
    sources=("megatron-core notes", "Megatron-Bridge guide", "NeMo guide"),
    topic="memory",
    needs=(GPUS, Need(words="a memory snapshot and the size of the GPUs' memory", missing=_unknown)),
    advice=("mem_balance", "goal_overlap_and_memory"),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where even the fullest GPU never reserved `memory_room.MIN_FREE_FRAC` of its
    memory."""
    room = given(tightest(case))
    free_bytes = given(room.free_bytes)
    share = free_bytes / given(room.total_bytes)
    evidence = [("never reserved, on the fullest GPU", f"{per_cent(share, 0)}, {gib(free_bytes)}")]
    if share < MIN_FREE_FRAC:
        return passes(evidence)
    less = [
        f"{name} parallelism"
        for name, size in (("tensor", tp_of(case)), ("context", cp_of(case)), ("pipeline", pp_of(case)))
        if size and size > 1
    ]
    ways = ["a larger micro-batch"] if fits_doubled(case) != "no" else []
    if not case.is_set_to("recompute_granularity", None):
        ways.append("less recomputation (PD504)")
    ways += [f"less {name}" for name in less]
    remedy = f"Spend it on {' or '.join(ways)}." if ways else "The same step fits a GPU with less memory."
    if fits_doubled(case) == "no":
        remedy += " Twice the micro-batch does not fit."
    return informs(
        reason="a good part of the memory was never reserved",
        evidence=evidence,
        remedy=remedy,
        advice=larger(case, "larger kernels use the tensor cores better"),
        verify="Run again: tokens per second rise; record a snapshot and look at the peak.",
        false_alarm="A snapshot of few steps, before the longest sequence or an evaluation came.",
    )
