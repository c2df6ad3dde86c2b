"""What a pass, or a layer of it, is made of; it scales part by part when the layout or the batch changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from perfdoc.simulator.job.rank import PassWork

_FIXED_MAX_FRAC = 0.5


@dataclass(frozen=True, kw_only=True)
class Work:
    """Times in ns. The length is the longer of device and host, and idle time that no launch explains."""

    gemm: float = 0.0
    attention: float = 0.0
    other: float = 0.0
    tp: float = 0.0
    """Exposed communication of a dimension; likewise the next two."""
    cp: float = 0.0
    ep: float = 0.0
    idle: float = 0.0
    """Gaps that launches do not explain."""
    host: float = 0.0
    """What the host takes to issue it."""
    fixed: float = 0.0
    """Of compute: what its kernels or operators take whatever their size."""

    @property
    def compute(self) -> float:
        """Of all kinds."""
        return self.gemm + self.attention + self.other

    @property
    def busy(self) -> float:
        """What the device is busy for, or waits for communication."""
        return self.compute + self.tp + self.cp + self.ep

    @property
    def length(self) -> float:
        """From the first work to the last: launch-bound where the host takes longer than the device."""
        return max(self.busy, self.host) + self.idle

    def __add__(self, other: Work) -> Work:
        mine, its = vars(self), vars(other)  # fields() is ten times slower, and this runs by the million
        return Work(**{name: ns + its[name] for name, ns in mine.items()})

    def __mul__(self, factor: float) -> Work:
        return Work(**{name: ns * factor for name, ns in vars(self).items()})

    def scaled(self, factors: Mapping[str, float]) -> Work:
        """Each part times its factor, 1 where none is given."""
        return Work(**{name: ns * factors.get(name, 1.0) for name, ns in vars(self).items()})

    @classmethod
    def of(cls, measured: PassWork, chunks: int, *, on_host: bool) -> Self:
        """One micro-batch on a stage, from the mean pass of one of its chunks.

        chunks: on the stage. on_host: of a rank that trains on the CPU, whose host is the device.

        10 ms busy and 5 ms idle, of which the host explains 3 (it takes 13): length 15 = max(10, 13) + 2.
        """
        compute, exposed = measured.compute_ns, measured.exposed_ns
        busy = compute + sum(exposed.values())
        host = 0.0 if on_host else min(measured.host_ns or 0.0, busy + measured.idle_ns)
        whole = sum(measured.group_frac.values())
        frac = measured.group_frac if whole else {"gemm": 1.0}
        return cls(
            gemm=compute * frac.get("gemm", 0.0) * chunks,
            attention=compute * frac.get("attention", 0.0) * chunks,
            other=compute * frac.get("other", 0.0) * chunks,
            tp=exposed["tp"] * chunks,
            cp=exposed["cp"] * chunks,
            ep=exposed["ep"] * chunks,
            idle=(measured.idle_ns - max(host - busy, 0.0)) * chunks,
            host=host * chunks,
            fixed=min(measured.fixed_ns, _FIXED_MAX_FRAC * compute) * chunks,
        )
