"""Where contention shows most: the run that communication slowed most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.contention.contention_samples import Samples
from perfdoc.analyzers.contention.contention_statistics import Compared
from perfdoc.analyzers.contention.contention_verdicts import Judged
from perfdoc.analyzers.device.device_view import DeviceView

KEYS = ("contention.norm", "contention.other")


def contention_spots(
    view: DeviceView, samples: Samples, found: Compared, verdicts: Sequence[Mapping[int, Judged]]
) -> list[Spot]:
    """verdicts: of norms, and of other kernels, by signature. Only kernels that are slower for certain
    count, and of their runs those beside communication, against the median alone."""
    spots = []
    for key, judged in zip(KEYS, verdicts, strict=True):
        slower = np.zeros(len(samples.signatures), bool)
        slower[[i for i, j in judged.items() if j.verdict == "slower"]] = True
        rows = np.flatnonzero(samples.beside & slower[samples.signature]) if slower.any() else ()
        if not len(rows):
            continue
        lost = samples.duration_ns[rows] - found.median_ns[0][samples.signature[rows]]
        row = int(rows[int(np.argmax(lost))])
        if (cost := int(lost.max())) > 0:
            name = view.trace.strings[samples.signatures[int(samples.signature[row])].name]
            spots.append(
                Spot(
                    key=key,
                    start_ns=int(samples.start_ns[row]),
                    end_ns=int(samples.end_ns[row]),
                    cost_ns=cost,
                    name=name,
                )
            )
    return spots
