"""The idle time of one rank in one step, divided into parts that sum to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Split:
    """Nanoseconds; bubble + transfer + handover + late_peer = idle."""

    idle_ns: int
    bubble_ns: int
    transfer_ns: int
    handover_ns: int
    late_peer_ns: int

    def __post_init__(self) -> None:
        parts = (self.bubble_ns, self.transfer_ns, self.handover_ns, self.late_peer_ns)
        assert min(parts) >= 0, parts
        assert sum(parts) == self.idle_ns, (parts, self.idle_ns)

    def __add__(self, other: Split) -> Split:
        return Split(
            idle_ns=self.idle_ns + other.idle_ns,
            bubble_ns=self.bubble_ns + other.bubble_ns,
            transfer_ns=self.transfer_ns + other.transfer_ns,
            handover_ns=self.handover_ns + other.handover_ns,
            late_peer_ns=self.late_peer_ns + other.late_peer_ns,
        )


NOTHING = Split(idle_ns=0, bubble_ns=0, transfer_ns=0, handover_ns=0, late_peer_ns=0)


def split_idle(*, idle_ns: int, ideal_ns: int, transfer_ns: int, handover_ns: int) -> Split:
    """Divide idle time: transfer and handover first, then at most the ideal bubble, then what is left.

    A stage that is slower than the mean may idle less than the mean's ideal bubble: then all of it is bubble.

    >>> split_idle(idle_ns=100, ideal_ns=60, transfer_ns=10, handover_ns=5).late_peer_ns
    25
    """
    transfer = min(transfer_ns, idle_ns)
    handover = min(handover_ns, idle_ns - transfer)
    bubble = min(ideal_ns, idle_ns - transfer - handover)
    return Split(
        idle_ns=idle_ns,
        bubble_ns=bubble,
        transfer_ns=transfer,
        handover_ns=handover,
        late_peer_ns=idle_ns - transfer - handover - bubble,
    )


def ideal_bubble_ns(own_ns: int, stages: int, *, pp: int, vpp: int, micro_batches: int) -> int:
    """(pp - 1) / (vpp * micro-batches) of the mean own time of some stages, rounded down.

    >>> ideal_bubble_ns(4 * 800, 4, pp=4, vpp=1, micro_batches=8)  # 3 / 8 of 800
    300
    """
    return (pp - 1) * own_ns // (stages * vpp * micro_batches)
