"""The replays of all ranks in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perfdoc import diagnosis as d


def replays_of(ranks: Sequence[d.Rank]) -> d.ReplayAnalysis:
    """The error that is largest either way, and the critical paths summed over ranks."""
    replays = [r.replay for r in ranks if r.replay is not None]
    measured = [r for r in replays if r.state == "measured" and r.error_frac is not None]
    if not measured:
        return d.ReplayAnalysis(
            state="not_measured",
            reason=replays[0].reason if replays else "the windows were not run again",
            remedy=replays[0].remedy if replays else "Leave --no-replay out.",
            error_frac=None,
            critical_path={},
        )
    path: Counter[str] = Counter()
    for replay in measured:
        path.update(replay.critical_path)
    return d.ReplayAnalysis(
        state="measured",
        reason="",
        remedy="",
        error_frac=max((r.error_frac or 0.0 for r in measured), key=abs),
        critical_path=dict(path.most_common()),
    )
