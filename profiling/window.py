"""Which steps of which ranks are profiled."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProfileWindow:
    """The profiled steps, one stretch of them, and the profiled ranks."""

    start: int
    """First profiled step, as the trainer numbers them."""
    steps: int
    """How many; at least 1."""
    ranks: Collection[int] | None = None
    """Profiled ranks; None for all."""

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"profile.start is {self.start}: the first profiled step is 0 or later")
        if self.steps < 1:
            raise ValueError(
                f"profile.steps is {self.steps}: at least one step is profiled (or --profiler none)"
            )
        if self.ranks is not None and (not self.ranks or min(self.ranks) < 0):
            raise ValueError(f"profile.ranks is {self.ranks}: name at least one rank, from 0")

    @property
    def last(self) -> int:
        """Last profiled step."""
        return self.start + self.steps - 1

    def has_step(self, step: int) -> bool:
        """Whether a step is profiled on the profiled ranks."""
        return self.start <= step <= self.last

    def has_rank(self, rank: int) -> bool:
        """Whether a rank is profiled."""
        return self.ranks is None or rank in self.ranks
