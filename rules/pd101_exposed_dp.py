"""PD101: gradient and weight communication that no compute hides."""

from __future__ import annotations

from perfdoc.rules.case import Case
from perfdoc.rules.exposed import exposed_ns, judged
from perfdoc.rules.gain import ceiling, predicted
from perfdoc.rules.rule import Advice, Meta, Verdict

META = Meta(
    code="PD101",
    title="Exposed data-parallel communication",
    why="Gradients can be reduced while the backward pass still computes, and weights gathered while the "
    "forward pass does. What is not hidden lengthens every step, on every rank.",
    sources=("seed 000", "seed 001", "seed 003"),
)

_VERIFY = "Run again: exposed DP communication in the ledger falls, and the step time by as much."
_FALSE_ALARM = (
    "One micro-batch, or a window in which ranks wait for a late one: then the wait, not the transfer, is "
    "what "
    "is exposed (see the skew section)."
)


def evaluate(case: Case) -> Verdict:
    """Fires at `exposed.MIN_FRAC` of the window, mean over ranks."""
    nothing, evidence = judged(case, "dp")
    if nothing is not None:
        return nothing
    advice = list(_overlaps(case)) + list(_buckets(case)) + list(_bytes(case))
    overlapping = any(a.knob.startswith("overlap_") for a in advice)
    keys = ["overlapped_dp"] if overlapping else [_KEY[a.knob] for a in advice if a.knob in _KEY]
    return Verdict(
        state="fires",
        reason="compute does not hide it",
        evidence=evidence,
        remedy="" if advice else _UNADVISED if case.configuration.values else _NO_CONFIGURATION,
        advice=advice,
        gain=predicted(case, *keys) or ceiling(case, exposed_ns("dp"), "the exposed DP communication"),
        verify=_VERIFY,
        false_alarm=_FALSE_ALARM,
    )


_NO_CONFIGURATION = "Give the job's configuration (--config FILE): without it no setting can be advised."
_UNADVISED = (
    "No setting that is known would help. Waiting for a late rank counts too: see the skew section. More "
    "compute per step, such as more micro-batches, hides more."
)
_KEY = {"grad_reduce_in_fp32": "dp_half_bytes"}


def _overlaps(case: Case) -> list[Advice]:
    """Only what is known to be off."""
    found = []
    if case.is_set_to("overlap_grad_reduce", False):
        why = "reduces each bucket of gradients while the backward pass goes on"
        found.append(Advice(knob="overlap_grad_reduce", to=True, why=why))
    sharded = case.is_set_to("use_distributed_optimizer", True)
    if sharded and case.is_set_to("overlap_param_gather", False):
        why = "gathers the weights of the next layers while the forward pass computes"
        found.append(Advice(knob="overlap_param_gather", to=True, why=why))
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
            found.append((prediction.gain.mid_ms or 0.0, Advice(knob="bucket_size", to=to, why=words)))
    return [advice for _, advice in sorted(found, key=lambda f: -f[0])[:1]]


def _bytes(case: Case) -> list[Advice]:
    if not case.is_set_to("grad_reduce_in_fp32", True) or case.job.facts.dtype in (None, "fp32"):
        return []
    return [
        Advice(
            knob="grad_reduce_in_fp32",
            to=False,
            why="sends gradients in 2 bytes instead of 4",
            costs="sums of gradients over ranks lose precision; compare the loss over some thousand steps",
        )
    ]
