"""Runs of one hour are no independent samples."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from perfdoc.gate.figures import RunFigures

SESSION = timedelta(hours=1)


def together(runs: Sequence[RunFigures]) -> list[str]:
    """A note where all runs began within an hour of one another; nothing where a time is not known.

    They share the machine's state of that hour, which the next runs do not: their scatter is too small.
    """
    known = [time for run in runs if (time := began(run)) is not None]
    if len(known) < max(2, len(runs)) or max(known) - min(known) > SESSION:
        return []
    return [
        f"all {len(runs)} baseline runs began within an hour of one another: they share conditions that "
        "later runs do not, so false alarms are likelier than 1 %; record runs of other days as well, or "
        "make old runs beside the new ones (--beside)"
    ]


def began(run: RunFigures) -> datetime | None:
    """When a run began; None where it does not say, or not in a way that is understood."""
    try:
        time = datetime.fromisoformat(run.utc or "")
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
