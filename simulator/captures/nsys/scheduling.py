"""Rows of an Nsight export about scheduling of threads and their calls into the OS runtime."""

from __future__ import annotations

from perfdoc.simulator.captures.nsys.export import Rows, Strings, global_tid
from perfdoc.simulator.captures.timeline import Timeline

_CLASS_OS_RUNTIME = 27


def scheduling_rows(timeline: Timeline, strings: Strings) -> dict[str, Rows]:
    """Table -> rows."""
    return {
        "SCHED_EVENTS": [
            {
                **{"start": e.at_ns, "cpu": 0, "isSchedIn": e.on_cpu},
                **{"globalTid": global_tid(e.pid, e.tid), "threadState": None if e.on_cpu else 0},
            }
            for e in timeline.scheduling
        ],
        "OSRT_API": [
            {
                **{"start": c.start_ns, "end": c.end_ns, "eventClass": _CLASS_OS_RUNTIME},
                **{"globalTid": global_tid(c.pid, c.tid), "nameId": strings(c.name)},
                **{"returnValue": 0, "nestingLevel": 0, "callchainId": 0, "argumentsId": 0},
            }
            for c in timeline.os_calls
        ],
    }
