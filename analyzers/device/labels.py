"""What reports call a rank: a label unlike all the others of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perfdoc.traces import Device


def rank_labels(devices: Sequence[tuple[int, Device]]) -> list[str]:
    """Labels for (index of the input, device), in order: `rank 3`, or `GPU 0, pid 144` where the capture does
    not say the rank; with more of what tells them apart where two would be the same."""
    labels = [f"GPU {d.ordinal}, pid {d.process}" if d.rank is None else f"rank {d.rank}" for _, d in devices]
    details = [
        [f", GPU {d.ordinal}" for _, d in devices],
        [f", pid {d.process}" for _, d in devices],
        [f", input {i}" for i, _ in devices],
        [f", device {n}" for n in range(len(devices))],
    ]
    for extra in details:
        seen = Counter(labels)
        labels = [
            label + detail if seen[label] > 1 and detail not in f", {label}" else label
            for label, detail in zip(labels, extra, strict=True)
        ]
    return labels
