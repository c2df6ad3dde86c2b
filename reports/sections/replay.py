"""What the critical path is made of: the chain that decides how long the window takes."""

from __future__ import annotations

from perfdoc.diagnosis import Diagnosis
from perfdoc.reports import units
from perfdoc.reports.names import shorten
from perfdoc.reports.sections.section import Grid, Section, share, time, word

_WORDS = {
    "compute": "compute",
    "copy": "copies",
    "host": "the host between CUDA calls",
    "host_call": "inside CUDA calls",
    "host_return": "the host waking up after the device",
    "launch_latency": "launch latency",
    "dependency": "streams waiting for one another",
    "collective": "waiting for other ranks",
    "before": "nothing known holds it up",
}


def build(diagnosis: Diagnosis) -> Section | None:
    """Parts of the critical paths, summed over ranks; and how well the windows could be run again."""
    found = diagnosis.analyses.replay
    replays = [r.replay for r in diagnosis.ranks if r.replay is not None and r.replay.state == "measured"]
    if found.state != "measured" or found.error_frac is None or not replays:
        return None
    total = sum(found.critical_path.values())
    rows = [
        [word(_word(part)), share(taken / total if total else None), time(taken)]
        for part, taken in found.critical_path.items()
    ]
    off = f"{100 * found.error_frac:+.2f} %"
    withheld = sum(not r.predicts for r in replays)
    sentences = [
        f"Run again from the capture as they were, the windows come out {off} from what was measured"
        + ("." if len(replays) == 1 else f" at the most ({units.plural(len(replays), 'rank')}, each alone).")
    ]
    if withheld:
        sentences.append(f"For {units.plural(withheld, 'rank')} that is too far off to predict from.")
    return Section(
        key="path",
        title="Critical path",
        sentences=sentences,
        grids=[Grid(head=["spent on", "share", "time"], align="lrr", rows=rows)],
    )


def _word(part: str) -> str:
    dimension = part.removeprefix("communication.")
    if dimension != part:
        known = shorten(dimension, 48)
        return f"communication, {known if dimension in ('other', 'unknown') else known.upper()}"
    return _WORDS.get(part, part)
