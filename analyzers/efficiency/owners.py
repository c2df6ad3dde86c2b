"""Which kernel owns each nanosecond of compute: of those that run the one that ends last."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64, owners_by_last_end
from perfdoc.analyzers.kernels.totals import sum_by


def owned_ns(start_ns: I64, end_ns: I64) -> I64:
    """Nanoseconds that each interval owns; they sum to the length of the union. start_ns ascends.

    >>> owned_ns(np.array([0, 5, 20]), np.array([10, 12, 21])).tolist()
    [5, 7, 1]
    """
    owned: I64 = np.maximum(end_ns - start_ns, 0)
    if len(owned) < 2:
        return owned
    reach = np.maximum.accumulate(end_ns)
    overlaps = np.empty(len(owned), bool)
    overlaps[0] = False
    np.less(start_ns[1:], reach[:-1], out=overlaps[1:])
    if not overlaps.any():
        return owned
    # Most kernels run alone: owners are looked for among those that overlap.
    cluster = np.cumsum(~overlaps) - 1
    in_cluster = np.flatnonzero((np.bincount(cluster) > 1)[cluster])
    begin, finish, owner = owners_by_last_end(start_ns[in_cluster], end_ns[in_cluster])
    owned[in_cluster] = sum_by(owner, finish - begin, len(in_cluster))
    return owned
