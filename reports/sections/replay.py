"""The critical path, the chain that decides how long the window takes, and predicted gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfdoc.reports.advice import provided_words
from perfdoc.reports.over_ranks import on_host
from perfdoc.reports.sections.section import Cell, Grid, Section, name, share, time, word
from perfdoc.results import Diagnosis, Replay, ReplayAnalysis, figures
from perfdoc.results.names import shorten
from perfdoc.results.ranks import in_steps

_RANKS_MOST = 16
_METHODS = {"ceiling": "upper bound", "model": "job model"}

_WORDS = {
    "compute": "compute",
    "copy": "copies",
    "host": "host between CUDA calls",
    "host_call": "inside CUDA calls",
    "host_return": "host wake-up after the device",
    "launch_latency": "launch latency",
    "dependency": "stream dependency",
    "collective": "waiting for other ranks",
    "before": "no known cause",
}

_EARLIER = "begun before the window"
"""Instead of `before`, where the first on the path is under way when the window begins: less than nothing."""
_LEAST_BEFORE = 0.001
"""Of the path: a smaller part without a cause is within the replay's precision and gets no row."""


def build(diagnosis: Diagnosis) -> Section | None:
    """Parts of the critical path, the replay error, and predicted gains."""
    found = diagnosis.analyses.replay
    replays = [r.replay for r in diagnosis.ranks if r.replay is not None and r.replay.state == "measured"]
    if found.state != "measured" or found.error_frac is None or not replays:
        return None
    total = sum(found.critical_path.values())
    rows = [
        [word(_word(part) if taken >= 0 else _EARLIER), share(taken / total if total else None), time(taken)]
        for part, taken in found.critical_path.items()
        if part != "before" or abs(taken) >= _LEAST_BEFORE * total
    ]
    grids = [Grid(head=["spent on", "share", "time"], align="lrr", rows=rows)]
    joined = found.job is not None and found.job.state == "measured"
    if joined and found.job is not None:
        grids.append(_by_rank(found.job))
    grids += _predictions(diagnosis)
    return Section(
        key="path",
        title="Critical path and predicted gains",
        sentences=[*_how_well(diagnosis, found, replays), *_by_construction(diagnosis)],
        grids=grids,
    )


def _how_well(diagnosis: Diagnosis, found: ReplayAnalysis, replays: Sequence[Replay]) -> Iterator[str]:
    off = figures.signed_share(abs(found.error_frac or 0.0), 2).removeprefix("+")
    of = "step" if in_steps(diagnosis.ranks) else "window"
    said = f"Replay of the unedited {of} is within {off} of the measured {of}"
    job = found.job
    yield from _first_steps(replays if job is None or job.state != "measured" else [job])
    if job is not None and job.state == "measured":
        yield f"{said} ({figures.plural(len(job.ranks), 'rank')} together)."
        if not job.predicts:
            yield f"No changes are predicted: {job.withheld}."
        return
    yield said + (
        "." if len(replays) == 1 else f" ({figures.plural(len(replays), 'rank')}, each replayed alone)."
    )
    if job is not None:
        yield f"The ranks were not replayed together: {job.reason}."
    if withheld := [r.withheld for r in replays if not r.predicts]:
        such_as = "" if len(set(withheld)) == 1 else "for example, "
        yield f"No changes are predicted for {figures.plural(len(withheld), 'rank')}: {such_as}{withheld[0]}."


def _first_steps(replays: Sequence[Replay]) -> Iterator[str]:
    if not (parts := [r for r in replays if r.window_steps is not None]):
        return
    least, most = min(r.steps for r in parts), max(r.steps for r in parts)
    of = max(r.window_steps or 0 for r in parts)
    steps = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    yield f"The first {steps} of {figures.plural(of, 'step')} were replayed."


def _by_construction(diagnosis: Diagnosis) -> Iterator[str]:
    """CPU ranks have no replay error whatever they did, so it says nothing of predictions."""
    if any(on_host(rank) for rank in diagnosis.ranks):
        yield (
            "Ranks that train on the CPU are replayed with their measured durations: they match by "
            "construction, which does not show how good predictions are."
        )


def _per(diagnosis: Diagnosis) -> str:
    """Windows without steps have no gain per step."""
    return "per step" if in_steps(diagnosis.ranks) else "in this window"


def _by_rank(job: Replay) -> Grid:
    """Time of the path on each rank, with its longest part."""
    shown = sorted((r for r in job.ranks if r.critical_path), key=lambda r: -sum(r.critical_path.values()))
    total = sum(sum(r.critical_path.values()) for r in shown)
    rows = []
    for rank in shown[:_RANKS_MOST]:
        taken = sum(rank.critical_path.values())
        most = max(rank.critical_path, key=lambda part: rank.critical_path[part])
        rows.append(
            [name(rank.name), share(taken / total if total else None), time(taken), word(_word(most))]
        )
    return Grid(
        caption="The job's critical path by rank",
        head=["rank", "share", "time", "mostly"],
        align="nrrl",
        rows=rows,
        left_out=len(shown) - len(rows),
    )


def _predictions(diagnosis: Diagnosis) -> Iterator[Grid]:
    gains = diagnosis.analyses.gains
    # What a rule proposes all the same has its row in the ranking.
    ranked = {row.key for row in diagnosis.opportunities}
    none = {p.key for p in gains.predictions if p.gain.method == "none"}
    out = none | {p.key for p in gains.predictions if p.left_out and p.key not in ranked}
    known = [p for p in gains.predictions if p.key not in out and (p.gain.is_predicted or p.high_ns)]
    known.sort(key=lambda p: -(p.mid_ns if p.mid_ns is not None else -1))
    if known:
        provided = {
            row.key or row.gain.key: provided_words(row.conditions)
            for row in diagnosis.opportunities
            if row.gain is not None
        }
        figures_of = "Predicted gain" if any(p.gain.is_predicted for p in known) else "Upper bound"
        rows = [
            [
                word(p.change),
                _saved(p.mid_ns),
                time(p.low_ns),
                time(p.high_ns),
                share(p.mid_frac),
                word(_METHODS.get(p.gain.method, p.gain.method) + provided.get(p.key, "")),
            ]
            for p in known
        ]
        yield Grid(
            caption=f"{figures_of} {_per(diagnosis)} of each change; savings overlap, do not add them",
            head=["change", "saves", "at least", "at most", "share", "by"],
            align="lrrrrl",
            rows=rows,
        )
    if rest := [p for p in gains.predictions if p.key in out]:
        yield Grid(
            caption="Changes that do not apply here",
            head=["change", "would save", "why not"],
            align="lrl",
            rows=[[word(p.change), _saved(p.mid_ns), word(p.left_out or p.reason)] for p in rest],
        )


def _saved(ns: int | None) -> Cell:
    """What is saved; of a change that is predicted to slow the step, what it costs."""
    return time(ns) if ns is None or ns >= 0 else word(f"costs {figures.duration(-ns)}")


def _word(part: str) -> str:
    dimension = part.removeprefix("communication.")
    if dimension != part:
        known = shorten(dimension, 48)
        return f"communication, {known if dimension in ('other', 'unknown') else known.upper()}"
    return _WORDS.get(part, part)
