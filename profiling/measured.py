"""What a device was measured to reach (`perfdoc peak`): as it is stored, and as run.json holds it.

Rates are of one rank while all ranks of the machine work at once: ranks on a CPU share its cores, its caches
and its memory.
"""

from typing import Annotated

import msgspec

from perfdoc.profiling.marks import DeviceKind

_Positive = Annotated[float, msgspec.Meta(ge=1, lt=1e21)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """The best of several repeats of one measurement."""

    best: _Positive
    """FLOP/s or bytes/s."""
    spread_frac: _Share
    """How far the median of the repeats lies below the best, as a share of it."""
    repeats: int
    what: str
    """`GEMM of 4096 x 4096 x 4096`, `copy of 256 MiB`."""


class MeasuredCeilings(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one machine."""

    device: str
    """The GPU's or the processor's own name."""
    kind: DeviceKind
    ranks: int
    """That were measured at once, each on a device of its own or on its share of the CPU."""
    threads: int | None
    """Of each rank on a CPU; None on a GPU."""
    flops: dict[str, Rate]
    """FLOP/s by what is multiplied: fp64, fp32, tf32, bf16, fp16, fp8."""
    memory: dict[str, Rate]
    """Bytes a second read and written: copy, triad."""
    collectives: dict[str, Rate]
    """Bus bandwidth over all ranks of the machine: all_reduce, all_gather, all_to_all."""
    missing: dict[str, str]
    """What could not be measured, and why."""
    busy: tuple[str, ...] = ()
    """What speaks for other work on the machine at that time, a line each."""
    versions: dict[str, str]
    measured_utc: str

    @property
    def memory_bytes_per_s(self) -> Rate | None:
        """The better of copy and triad."""
        return max(self.memory.values(), key=lambda rate: rate.best, default=None)

    def text(self, rate: Rate) -> str:
        """`best of 12 GEMMs …`: how a rate was measured, in words."""
        with_others = "" if self.ranks == 1 else f", {self.ranks} ranks at once"
        threads = "" if self.threads is None else f", {self.threads} thread{'s' * (self.threads != 1)} each"
        busy = ", on a busy machine" if self.busy else ""
        return f"measured here, best of {rate.repeats}: {rate.what}{with_others}{threads}{busy}"
