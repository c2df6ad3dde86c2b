"""PD101: gradient and weight communication that no compute hides."""

from __future__ import annotations

from perfdoc.rules.case import Case
from perfdoc.rules.exposed import ceiling_of_transfer, judged
from perfdoc.rules.gain import at_most, predicted
from perfdoc.rules.rule import Advice, Meta, Verdict

META = Meta(
    code="PD101",
    title="Exposed data-parallel communication",
    why="Gradients can be reduced while the backward pass still computes, and weights gathered while the "
    "forward pass does. What is not hidden lengthens every step, on every rank.",
    sources=("seed 000", "seed 001", "seed 003"),
    topic="comm_overlap",
    needs=("trace",),
    advice=("dp_overlap",),
)

_VERIFY = "Run again: exposed DP communication in the ledger falls, and the step time by as much."
_FALSE_ALARM = (
    "One micro-batch; or ranks that were not compared and wait for a late one: then the wait, not the "
    "transfer, is what is exposed."
)


def evaluate(case: Case) -> Verdict:
    """Fires at `exposed.MIN_FRAC` of the window, mean over ranks."""
    nothing, evidence = judged(case, "dp")
    if nothing is not None:
        return nothing
    advice = list(_overlaps(case)) + list(_buckets(case)) + list(_bytes(case))
    return Verdict(
        state="fires",
        reason="compute does not hide it",
        evidence=evidence,
        advice=advice,
        remedy="" if advice else _UNADVISED if case.configuration.values else _NO_CONFIGURATION,
        otherwise=_UNADVISED,
        gain=ceiling_of_transfer(case, "dp"),
        verify=_VERIFY,
        false_alarm=_FALSE_ALARM,
    )


_NO_CONFIGURATION = "Give the job's configuration (--config FILE): without it no setting can be advised."
_UNADVISED = (
    "No setting that is known would help. Waiting for a late rank counts too: see the skew section. More "
    "compute per step, such as more micro-batches, hides more."
)
_GRADIENTS, _WEIGHTS = "overlap_grad_reduce", "overlap_param_gather"


def _overlaps(case: Case) -> list[Advice]:
    """Only what is known to be off. The replay overlaps gradients and weights together."""
    found = []
    gain = predicted(case, "overlapped_dp")
    sharded = case.is_set_to("use_distributed_optimizer", True)
    both = case.is_set_to(_GRADIENTS, False) and sharded and case.is_set_to(_WEIGHTS, False)
    if case.is_set_to(_GRADIENTS, False):
        why = "reduces each bucket of gradients while the backward pass goes on"
        together = (_WEIGHTS,) if both else ()
        found.append(Advice(knob=_GRADIENTS, to=True, why=why, gain=gain, together=together))
    if sharded and case.is_set_to(_WEIGHTS, False):
        why = "gathers the weights of the next layers while the forward pass computes"
        if not both:
            gain = at_most(gain, "predicted with gradients overlapped anew, which they may be already")
        together = (_GRADIENTS,) if both else ()
        found.append(Advice(knob=_WEIGHTS, to=True, why=why, gain=gain, together=together))
    return found


def _buckets(case: Case) -> list[Advice]:
    """Another bucket size, where the replay says that it gains by the lower end of its band."""
    known, size = case.setting("bucket_size")
    if not known or isinstance(size, bool) or not isinstance(size, int):
        return []
    found = []
    for key, factor in (("buckets_x4", 4.0), ("buckets_x0.25", 0.25)):
        prediction = case.prediction(key)
        if prediction is not None and (prediction.gain.low_ms or 0.0) > 0:
            words = "fewer, larger messages" if factor > 1 else "messages that begin earlier"
            to = max(1, round(size * factor))
            found.append((words, to, prediction.gain))
    found.sort(key=lambda f: -(f[2].mid_ms or 0.0))
    return [Advice(knob="bucket_size", to=to, why=words, gain=gain) for words, to, gain in found[:1]]


def _bytes(case: Case) -> list[Advice]:
    if not case.is_set_to("grad_reduce_in_fp32", True) or case.job.facts.dtype in (None, "fp32"):
        return []
    return [
        Advice(
            knob="grad_reduce_in_fp32",
            to=False,
            why="sends gradients in 2 bytes instead of 4",
            gain=predicted(case, "dp_half_bytes"),
            costs="sums of gradients over ranks lose precision; compare the loss over some thousand steps",
        )
    ]
