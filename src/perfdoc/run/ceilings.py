"""What the ranks' devices reach, measured once before a run, so that its MFU is known."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

import msgspec

from perfdoc.peak.measure import PeakError, Setting
from perfdoc.peak.setting import ranks_here
from perfdoc.peak.store import ceilings
from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.measured import MeasuredCeilings
from perfdoc.profiling.whole_file import whole_file
from perfdoc.results.figures import flops
from perfdoc.run.prepare import CEILINGS, Plan


def leave_ceilings(planned: Plan, say: Callable[[str], None]) -> None:
    """Measure, unless this machine was measured before, and leave the figures where the trainer looks.

    A stop takes the run directory away, in which nothing happened yet. What cannot be measured stays unknown.
    """
    run = planned.run
    assert run is not None
    setting = Setting(kind=planned.device, ranks=ranks_here(planned.ranks_here))
    begin = time.monotonic()
    try:
        found, now = ceilings(
            setting, before=lambda: say("measuring what this machine reaches (--no-peak: not)")
        )
        with whole_file(run.path / CEILINGS, replace=True) as part:
            part.write_bytes(msgspec.json.encode(found))
    except (PeakError, CaptureError, OSError) as error:
        say(f"{error}; without a data sheet's peak MFU stays unknown")
        return
    except BaseException:
        if not planned.several_nodes and not run.is_used:
            shutil.rmtree(run.path, ignore_errors=True)
        raise
    if now:
        say(f"{in_words(found)} ({time.monotonic() - begin:.1f} s)")
    for line in found.busy if now else ():
        say(f"a busy machine: {line}")


def in_words(found: MeasuredCeilings) -> str:
    """`each of 2 ranks reaches fp32 95.1 GFLOP/s, …`."""
    rates = ", ".join(f"{dtype} {flops(rate.best)}FLOP/s" for dtype, rate in found.flops.items())
    return f"each of {found.ranks} ranks reaches {rates}" if found.ranks > 1 else f"it reaches {rates}"
