"""Whether the API rows of an Nsight export launched what ran on its devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.traces.model import ApiCalls, Copies, GraphLaunches, Kernels
from perfdoc.traces.nsys_ids import Ids

_FIRST_ROWS = 65_536
"""Nearly every export has a launch among its first rows, which spares the look at all of them."""


def any_launch_found(api: ApiCalls, ids: Ids, activities: Sequence[Kernels | GraphLaunches | Copies]) -> bool:
    """Whether at least one activity has the correlation id of a call of its own process."""
    stride = 1 + max(int(t.correlation.max(initial=0)) for t in (api, *activities))
    index: dict[int, int] = {}
    of_thread, of_device = (
        np.array([index.setdefault(entry.process, len(index)) for entry in entries], np.int64)
        for entries in (ids.threads, ids.devices)
    )
    for limit in (_FIRST_ROWS, None):
        rows = np.flatnonzero((api.correlation[:limit] >= 0) & (api.thread[:limit] >= 0))
        calls = of_thread[api.thread[rows]] * stride + api.correlation[rows]
        for table in activities:
            known = np.flatnonzero(table.correlation[:limit] >= 0)
            keys = of_device[table.device[known]] * stride + table.correlation[known]
            if len(calls) and np.isin(keys, calls).any():
                return True
    return False
