"""What the rules found, as it is published, and the one sentence that says where the time went."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc import results as d
from perfdoc.diagnose.ranks import copied
from perfdoc.knobs.knob import DIALECTS, Value
from perfdoc.knobs.writing import as_written
from perfdoc.results import IDLE_CAUSES, MemoryAnalysis, Rank
from perfdoc.results.figures import partition, share, size
from perfdoc.rules.engine.rule import Proposed, RuleResult
from perfdoc.rules.engine.worst import Worst


def rule_of(result: RuleResult) -> d.RuleResult:
    """One row."""
    return d.RuleResult(
        code=result.code,
        title=result.title,
        state=result.state,
        level=result.level,
        reason=result.reason,
        evidence=[d.Evidence(label=e.label, value=e.value) for e in result.evidence],
        remedy=result.remedy,
        advice=[_advice(piece) for piece in result.advice],
        gain=None if result.gain is None else copied(result.gain, d.Gain),
        gain_per=result.gain_per,
        gain_frac=result.gain_frac,
        verify=result.verify,
        false_alarm=result.false_alarm,
        worst=None if result.worst is None else _worst(result.worst),
        related=[copied(other, d.Related) for other in result.related],
    )


def _worst(found: Worst) -> d.WorstInstance:
    instance = found.instance
    return d.WorstInstance(
        rank=instance.rank,
        label=instance.label,
        step=instance.step,
        name=instance.name,
        says=found.says,
        start_ns=instance.start_ns,
        end_ns=instance.end_ns,
        cost_ns=instance.cost_ns,
        ranks=[copied(rank, d.TimelineRank) for rank in instance.ranks],
        resolution_ns=instance.resolution_ns,
    )


def _advice(piece: Proposed) -> d.Advice:
    snippets = {dialect: as_written(piece.knob, piece.to, dialect) for dialect in DIALECTS}
    return d.Advice(
        knob=piece.knob,
        from_value=_text(piece.now) if piece.known else None,
        to_value=_text(piece.to),
        why=piece.why,
        costs=piece.costs,
        dialects={dialect: text for dialect, text in snippets.items() if text},
        forbidden=piece.forbidden,
        gain=None if piece.gain is None else copied(piece.gain, d.Gain),
        together=list(piece.together),
    )


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(_text(v) for v in value)
    return "null" if value is None else str(value)


_WORDS = {
    "host": "the host launching work too late",
    "python": "Python between operators",
    "gc": "Python's garbage collection",
    "data": "waiting for data",
    "dependency": "streams waiting for one another",
    "launch_latency": "launch latency",
    "unexplained": "causes that the capture does not show",
}

_WORTH_A_CAUSE = 0.001
"""Of the window: of less idle time, which is printed as <0.1 %, no cause is named."""


def verdict_of(ranks: Sequence[Rank]) -> str:
    """Summed over all ranks' windows; the largest loss is named first. Where CUDA graphs were traced as a
    whole, a second sentence says what they may hide."""
    return f"{_where_it_went(ranks)}{_hidden_in_graphs(ranks)}"


def _where_it_went(ranks: Sequence[Rank]) -> str:
    window = sum(r.window.duration_ns for r in ranks)
    if not window:
        return "The window is empty: nothing ran in it."
    idle = {c: sum(getattr(r.ledger_ns.idle, c) for r in ranks) for c in IDLE_CAUSES}
    cause = max(idle, key=lambda c: idle[c])
    on_host = all(r.gpu.name == "CPU" for r in ranks)
    times = {
        "compute": sum(r.ledger_ns.compute for r in ranks),
        "communication that no compute hides": sum(r.ledger_ns.exposed_comm.total for r in ranks),
        "copies that nothing hides": sum(r.ledger_ns.exposed_memcpy for r in ranks),
        "idle": sum(idle.values()),
    }
    # The report prints the same four shares: rounded together, so that both agree and add up.
    shares = dict(zip(times, partition(list(times.values())), strict=True))
    device = "CPU rank" if on_host else "GPU"
    what = device if len(ranks) == 1 else f"{len(ranks)} {device}s"
    verb = "computes" if len(ranks) == 1 else "compute"
    scope = "steps" if all(r.window.kind == "steps" for r in ranks) else "window"
    compute = shares.pop("compute")
    losses = sorted((name for name in shares if times[name]), key=lambda name: -times[name])
    if not losses:
        return f"The {what} {verb} for all of the {scope}."
    mostly = f", mostly {_WORDS['python' if on_host and cause == 'host' else cause]}"
    names = {"idle": f"idle{mostly if times['idle'] >= _WORTH_A_CAUSE * window else ''}"}
    parts = ", ".join(f"{shares[name]} is {names.get(name, name)}" for name in losses)
    return f"The {what} {verb} for {compute} of the {scope}; {parts}."


def _hidden_in_graphs(ranks: Sequence[Rank]) -> str:
    """With the space before it; nothing where the kernels of graphs were seen."""
    graphs = [r.host.graphs for r in ranks if r.host.graphs.whole_graphs]
    kernel_ns = sum(r.host.graphs.kernel_ns or 0 for r in ranks)
    if not graphs or not kernel_ns:
        return ""
    inside = share(sum(g.graph_ns or 0 for g in graphs) / kernel_ns)
    return (
        f" But {inside} of the kernel time are CUDA graphs that were traced as a whole: communication and "
        "idle time inside of them are not seen and count as compute."
    )


def memory_verdict(memory: MemoryAnalysis) -> str:
    """The sentence where only memory was looked at: the device with the highest peak."""
    peaks = [m for m in memory.devices if m.peak_allocated_bytes is not None]
    if not peaks:
        return f"Nothing was measured: {memory.reason}"
    top = max(peaks, key=lambda m: m.peak_allocated_bytes or 0)
    reserved = f", of {size(top.peak_reserved_bytes)} reserved" if top.peak_reserved_bytes else ""
    where = f"GPU {top.device}" if top.rank is None else f"rank {top.rank}"
    return f"Tensors took {size(top.peak_allocated_bytes)} at the peak on {where}{reserved}."
