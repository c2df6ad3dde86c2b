"""PD201: the device runs dry because the host launches too slowly."""

from __future__ import annotations

from perfdoc.rules.case import Case
from perfdoc.rules.gain import ceiling, predicted, worth_frac
from perfdoc.rules.rule import Advice, Meta, Verdict
from perfdoc.rules.time_evidence import time_evidence

META = Meta(
    code="PD201",
    title="Launch-starved device",
    why="The next kernel was launched after the device had run dry: it idles while Python and the driver "
    "work.",
    sources=("seed 000", "seed 001"),
    topic="host_overhead",
    needs=("trace",),
    advice=(
        "host_symptom_flops",
        "host_cuda_graph",
    ),
)

MIN_FRAC = 0.05
"""Of the window, mean over ranks; or what the replay says that the step would save, waits of other ranks
included."""


def evaluate(case: Case) -> Verdict:
    """Fires where the host holds the device up for `MIN_FRAC` of the window."""
    if case.on_host:
        return Verdict(state="not_applicable", reason="the ranks train on the CPU: nothing is launched")
    if not all(c.capabilities["launch_correlation"].available for c in case.captures):
        reason = next(
            c.capabilities["launch_correlation"].reason
            for c in case.captures
            if not c.capabilities["launch_correlation"].available
        )
        return Verdict(state="skipped", reason=reason)
    if any(r.window.kind == "capture" and "asked for" not in r.window.reason for r in case.ranks):
        reason = "the window is the whole capture, start-up included: steps are not known (see PD902)"
        return Verdict(state="skipped", reason=reason)
    share = case.share(lambda r: r.ledger.idle_ns["host"])
    if share is None:
        return Verdict(state="skipped", reason="every window is empty")
    evidence = time_evidence(case, "idle behind the host", share, lambda r: r.ledger.idle_ns["host"])
    if max(share, worth_frac(case, "without_launches")) < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    advice = []
    if case.is_set_to("cuda_graph_impl", "none") and _capturable(case):
        advice.append(
            Advice(
                knob="cuda_graph_impl",
                to="local",
                gain=predicted(case, "without_launches"),
                why="launches a layer's kernels with one call",
                costs="memory for the graphs' static buffers, and shapes that stay the same",
            )
        )
    return Verdict(
        state="fires",
        reason="kernels are launched later than the device could take them",
        evidence=evidence,
        remedy=f"Give each launch more work: a larger micro-batch{_less_tp(case)}. The host section names "
        "the calls that wait for the device; remove those first.",
        advice=advice,
        gain=ceiling(case, lambda r: r.ledger.idle_ns["host"], "the idle time behind the host"),
        verify="Run again: idle.host in the ledger falls, and the launch queue stays filled.",
        false_alarm="A capture with Python stacks or --cuda-memory-usage slows the host; compare the "
        "profiled with "
        "the unprofiled steps.",
    )


def _less_tp(case: Case) -> str:
    known, tp = case.setting("tensor_model_parallel_size")
    return ", or less tensor parallelism" if known and isinstance(tp, int) and tp > 1 else ""


def _capturable(case: Case) -> bool:
    """Whether it is known that whole layers can be captured: nothing is recomputed (megatron-core refuses
    full recomputation, and selective with dropout, inside of a layer's graph), and experts, if there are any,
    get inputs of one shape."""
    if not case.is_set_to("recompute_granularity", None):
        return False
    known, experts = case.setting("num_moe_experts")
    if not known:
        model = case.job.facts.model
        return model is not None and not model.experts
    if not isinstance(experts, int) or experts <= 1:
        return experts is None or isinstance(experts, int)
    known, capacity = case.setting("moe_expert_capacity_factor")
    return known and capacity is not None and case.is_set_to("moe_pad_expert_input_to_capacity", True)
