"""What the process that read a capture hands on of a rank: its replay, and its tasks where they are few.

A task takes about 130 bytes in all its columns, and joining ranks and editing them some times that. So the
ranks of a job may hold KEPT_TASKS_MAX tasks together; windows with more are replayed one by one, where each
was read, and the job as a whole is not.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from perfdoc.simulator.replay.replay import Replay, replay

KEPT_TASKS_MAX = 1_000_000
"""Over all ranks: about 130 MB that travel, 0.5 GB while changes are predicted."""


@dataclass(frozen=True, kw_only=True)
class KeptRank:
    """A rank's replay, and what it was made from."""

    replay: Replay
    rebuilt: Rebuilt | None
    """None where it holds more tasks than may be kept, or nothing could be replayed."""


def replay_and_keep(view: DeviceView, *, keep_tasks: int = KEPT_TASKS_MAX) -> KeptRank:
    """Rebuild one rank's window, run it again as it is, and keep it if it is small enough.

    keep_tasks: what all devices of the capture may hold together; each its share.
    """
    rebuilt = rebuild_rank(view)
    found = replay(rebuilt)
    keep = found.state == "measured" and len(rebuilt.start_ns) * len(view.trace.devices) <= keep_tasks
    return KeptRank(replay=found, rebuilt=rebuilt if keep else None)
