"""The critical path, the chain that decides how long the window takes, and what changes to it would gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfdoc.reports.advice import rough
from perfdoc.reports.sections.over_ranks import on_host
from perfdoc.reports.sections.section import Cell, Grid, Section, name, share, time, word
from perfdoc.results import Diagnosis, Replay, ReplayAnalysis, figures
from perfdoc.results.names import shorten

_RANKS_MOST = 16

_WORDS = {
    "compute": "compute",
    "copy": "copies",
    "host": "the host between calls",
    "host_call": "inside CUDA calls",
    "host_return": "the host waking up after the device",
    "launch_latency": "launch latency",
    "dependency": "streams waiting for one another",
    "collective": "waiting for other ranks",
    "before": "nothing known holds it up",
}

_EARLIER = "begun before the window"
"""Instead of `before`, where the first on the path is under way when the window begins: less than nothing."""
_LEAST_BEFORE = 0.001
"""Of the path: a smaller part that nothing holds up is how exact the replay is, and no row."""


def build(diagnosis: Diagnosis) -> Section | None:
    """Parts of the critical path, how well the windows could be run again, and what changes would gain."""
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
        sentences=[*_how_well(found, replays), *_by_construction(diagnosis), *_together(diagnosis)],
        grids=grids,
    )


def _how_well(found: ReplayAnalysis, replays: Sequence[Replay]) -> Iterator[str]:
    off = figures.signed_share(found.error_frac or 0.0, 2)
    job = found.job
    if job is not None and job.state == "measured":
        yield (
            f"Run again from the captures as they were, {figures.plural(len(job.ranks), 'rank')} together, "
            f"no rank comes out further from what was measured than {off}."
        )
        if not job.predicts:
            yield f"Changes are not predicted from it: {job.withheld}."
        return
    several = (
        "." if len(replays) == 1 else f" at the most ({figures.plural(len(replays), 'rank')}, each alone)."
    )
    yield (
        f"Run again from the capture as they were, the windows come out {off} from what was measured"
        + several
    )
    if job is not None:
        yield f"The ranks were not run together: {job.reason}."
    if withheld := sum(not r.predicts for r in replays):
        yield f"For {figures.plural(withheld, 'rank')} that is too far off to predict from."


def _by_construction(diagnosis: Diagnosis) -> Iterator[str]:
    """What that distance is worth: of ranks that train on the CPU it is none whatever they did."""
    of_host = sum(on_host(rank) for rank in diagnosis.ranks)
    if of_host:
        whose = "Ranks" if of_host == len(diagnosis.ranks) else "The ranks"
        yield (
            f"{whose} that train on the CPU are run again with every piece of time as long as it was. They "
            "come out so by construction, which does not show how good predictions are."
        )


def _together(diagnosis: Diagnosis) -> Iterator[str]:
    accepted = diagnosis.combined.accepted if diagnosis.combined is not None else []
    surely = [p for p in diagnosis.analyses.gains.predictions if p.key in accepted and (p.low_ns or 0) > 0]
    if surely:
        best = max(surely, key=lambda p: p.mid_ns or 0)
        low, mid, high = (rough((ns or 0) / 1e6) for ns in (best.low_ns, best.mid_ns, best.high_ns))
        yield (
            f"Of the changes that were tried on it, `{best.change}` saves most {_per(diagnosis)}: "
            f"{mid}, {low} to {high}."
        )
    both = diagnosis.combined
    if both is not None and both.gain is not None and both.gain.mid_ms is not None and len(both.accepted) > 1:
        low, mid, high = (rough(ms or 0.0) for ms in (both.gain.low_ms, both.gain.mid_ms, both.gain.high_ms))
        yield (
            f"The {len(both.accepted)} changes that gain something by the lower end of their band, simulated "
            f"together, save {mid} {_per(diagnosis)}, {low} to {high}."
        )


def _per(diagnosis: Diagnosis) -> str:
    """What gains are of: windows without steps have no step."""
    steps = all(rank.window.steps for rank in diagnosis.ranks)
    return "per step" if steps else "in this window"


def _by_rank(job: Replay) -> Grid:
    """On which ranks the path lies: the longest part of each is named."""
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
        head=["rank", "share", "time", "most of it"],
        align="nrrl",
        rows=rows,
        left_out=len(shown) - len(rows),
    )


def _predictions(diagnosis: Diagnosis) -> Iterator[Grid]:
    gains = diagnosis.analyses.gains
    known = [p for p in gains.predictions if p.gain.method != "none"]
    known.sort(key=lambda p: -(p.mid_ns if p.mid_ns is not None else -1))
    if known:
        rows = [
            [
                word(p.change),
                _saved(p.mid_ns),
                time(p.low_ns),
                time(p.high_ns),
                share(p.mid_frac),
                word(p.gain.method),
            ]
            for p in known
        ]
        yield Grid(
            caption=f"What a change would save {_per(diagnosis)}, each alone (never to be added)",
            head=["change", "saves", "at least", "at most", "of it", "by"],
            align="lrrrrl",
            rows=rows,
        )
    if rest := [p for p in gains.predictions if p.gain.method == "none"]:
        yield Grid(
            caption="Changes that do not apply here",
            head=["change", "why"],
            align="ll",
            rows=[[word(p.change), word(p.reason)] for p in rest],
        )


def _saved(ns: int | None) -> Cell:
    """What is saved; where a change is predicted to make things slower, in words what it costs."""
    return time(ns) if ns is None or ns >= 0 else word(f"costs {figures.duration(-ns)}")


def _word(part: str) -> str:
    dimension = part.removeprefix("communication.")
    if dimension != part:
        known = shorten(dimension, 48)
        return f"communication, {known if dimension in ('other', 'unknown') else known.upper()}"
    return _WORDS.get(part, part)
