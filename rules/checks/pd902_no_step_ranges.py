"""Without steps the whole capture is analysed, start-up and shutdown included, and neither a step time nor
MFU can be given."""

from collections.abc import Iterator

from perfdoc.analyzers.device.window import NO_LAUNCHES
from perfdoc.results.capture_parts import Period
from perfdoc.results.figures import brief, per_cent
from perfdoc.results.ranks import Window
from perfdoc.rules.engine.assumptions import FRAMEWORK, PYTORCH, Assumes
from perfdoc.rules.engine.needs import ALL_WORK
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.capture import OWN_WINDOW

_IN_PYTHON = (
    'Wrap each step: `torch.cuda.nvtx.range_push(f"step {n}")` … `torch.cuda.nvtx.range_pop()`, or call '
    "`profiler.step()`"
)
_IN_C = "Wrap what repeats: `nvtxRangePush` … `nvtxRangePop`, named step and its number"
_OTHERS = 'Wrap each step: `nvtx.push_range(f"step {n}")` … `nvtx.pop_range()` of the package nvtx'
_WRAP = f"{_IN_PYTHON}; or name your own ranges with `--step-range REGEX`."
META = Meta(
    title="No step ranges",
    action="Name the steps",
    sources=("definitions",),
    topic="capture",
    needs=(OWN_WINDOW, ALL_WORK),
    assumes=(
        Assumes(of=FRAMEWORK, words=_IN_PYTHON, instead=_IN_C),
        Assumes(of=PYTORCH, words=_IN_PYTHON, instead=_OTHERS),
    ),
    for_servers=True,
)


def evaluate(case: Case) -> Verdict:
    """Fires where a rank fell back to the whole capture though the user asked for nothing else."""
    ranks = case.ranks
    without = [r for r in ranks if r.window.kind == "capture"]
    evidence = [("ranks without steps", f"{len(without)} of {len(ranks)}")]
    if not without:
        return passes(evidence)
    # The verdict has the share of that rank of which start-up is most: so has this.
    window = max((r.window for r in without), key=lambda w: w.start_up.duration_ns if w.start_up else 0)
    evidence += [
        (
            f"ranges that could be steps ({per_cent(p.launches_frac)} of launches)",
            f"{' + '.join(p.names)}, {p.count:,} times" if p.count > 1 else " + ".join(p.names),
        )
        for p in window.proposals
    ]
    if window.period is not None:
        evidence.append(("period, inferred from the kernel sequence", _words(window.period)))
    return fires(
        reason=window.reason,
        action=_action(window),
        evidence=evidence,
        remedy=_launches(case)
        if window.reason == NO_LAUNCHES
        else " ".join([*_what_is_missing(window), *_what_is_there(window), _WRAP]),
        verify="Analyse again: the report gives a step time and the number of steps.",
        false_alarm="A program without steps, such as inference: pass --window.",
    )


def _action(window: Window) -> str:
    """What is there goes first: ranges of the capture, then its period; empty where neither helps."""
    if window.runs_once:
        return "Capture steps that come later"
    if window.reason == NO_LAUNCHES:
        return "Capture the launches of kernels too"
    if window.proposals:
        return f"Name the steps: {window.proposals[0].option}"
    if window.period is not None:
        return f"Analyse periods: {_option(window.period)}"
    return ""


def _launches(case: Case) -> str:
    """Steps are marked; what is missing is the launch of what ran in them."""
    found = (c.capabilities["launch_correlation"] for c in case.captures)
    why = next((c.remedy for c in found if not c.available and c.remedy), "")
    return " ".join(w for w in ("The steps are marked: capture the launches of their kernels too.", why) if w)


def _words(period: Period) -> str:
    what = "with the optimizer" if period.optimizer else "a step, micro-batch or layer"
    return f"{period.repeats:,} times {period.kernels:,} kernels, {brief(period.mean_ns)} each; {what}"


def _what_is_missing(window: Window) -> Iterator[str]:
    if window.runs_once:
        yield f"Capture several steps: {window.runs_once}."


def _what_is_there(window: Window) -> Iterator[str]:
    """Before new ranges: those of the capture, and what repeats in it."""
    for p in window.proposals:
        yield f"Use the ranges that are there, with `{p.option}` in the command line."
    if window.period is not None and not window.proposals:
        yield f"Analyse whole periods, with `{_option(window.period)}` in the command line."


def _option(period: Period) -> str:
    """To be pasted: in seconds, so short that no line of a report cuts it."""
    times = (period.start_ns, period.end_ns)
    start, end = (f"{t // 10**9}.{t % 10**9 // 1000:06}".rstrip("0").rstrip(".") for t in times)
    return f"--window {start}s,{end}s"
