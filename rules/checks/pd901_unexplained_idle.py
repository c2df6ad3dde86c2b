"""Time that no cause accounts for cannot be advised on, and large shares mean that the capture or perfdoc
itself misses something."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.needs import ALL_WORK, WINDOW
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.engine.worst import worst_instance
from perfdoc.rules.facts.capture import in_turns, shares_gpu

META = Meta(
    title="Unexplained idle time",
    action="Capture what explains the idle time",
    sources=("definitions",),
    topic="capture",
    needs=(WINDOW, ALL_WORK),
    for_servers=True,
)

MAX_UNEXPLAINED_FRAC = 0.02
"""Of the window: more than this is a defect to look into."""
_LOOK = (
    "Look at the gaps on the timeline: either the launch of what ran next is not in the capture, or it was "
    "queued and started late. On Windows and WSL the driver submits work in batches, which looks like the "
    "latter: measure on Linux."
)
_SPREAD = (
    'Where layers are spread over the GPUs of one process (device_map="auto"), these work one after another: '
    "take one process a GPU and FSDP or DDP, or a pipeline with micro-batches; to serve, tensor parallelism, "
    "or one GPU if the model fits."
)
_ALONE = "Capture one process alone, or see on the timeline what the others run meanwhile."


def evaluate(case: Case) -> Verdict:
    """Fires where any rank's window has more unexplained idle time than the threshold."""
    shares = [
        (r.ledger.idle.unexplained / r.ledger.total, c, r)
        for c in case.captures
        for r in c.ranks
        if r.ledger.total
    ]
    worst, capture, rank = max(shares, key=lambda s: s[0])
    evidence = [
        (f"largest share (device {rank.device.ordinal}, process {rank.device.process})", per_cent(worst))
    ]
    if worst <= MAX_UNEXPLAINED_FRAC:
        return passes(evidence)
    reason, remedy = "no cause that the capture shows accounts for it", _LOOK
    if in_turns(case):
        reason, remedy = f"{len(case.ranks)} GPUs of one process seem to take turns: one at a time", _SPREAD
    elif not (launches := capture.capabilities["launch_correlation"]).available:
        reason, remedy = "launches are not in the capture, so idle time has no cause", launches.remedy
        if not (rank.events.partial or (calls := capture.capabilities["api_calls"]).available):
            remedy = f"Capture the CUDA API too: {calls.remedy}"
    elif shares_gpu(case):
        reason, remedy = "other processes use the same GPU, and their work may fill it", _ALONE
    return fires(
        action="Let the GPUs work at the same time" if remedy == _SPREAD else "",
        worst=worst_instance(case, "idle.unexplained"),
        reason=reason,
        evidence=evidence,
        remedy=remedy,
        verify="Capture again: leaf idle.unexplained falls below the threshold.",
        false_alarm="A job that does nothing for a while: the window includes a pause outside the training "
        "loop.",
    )
