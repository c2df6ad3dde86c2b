"""Parts of a capture without step ranges: its start-up, what repeats in it, ranges that could be steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """What runs once at the beginning. Times of calls may overlap, between kinds too."""

    start_ns: int
    end_ns: int
    compute_ns: int
    loading_ns: int
    """Loading code: modules, libraries."""
    allocation_ns: int
    communicator_ns: int
    """Making communicators."""
    work_frac: float
    """Of everything that runs on the device in the capture: what begins before the end of start-up."""
    left_out: bool
    """Whether the window begins after it; else it is part of the window, and no gain is predicted."""


@dataclass(frozen=True, kw_only=True)
class Period:
    """A sequence of kernels that repeats, on the stream that runs most of them: inferred, hence no step."""

    kernels: int
    repeats: int
    """Whole ones."""
    start_ns: int
    """Of the first whole one."""
    end_ns: int
    """Start of what follows the last whole one; the end of its last kernel where nothing does."""
    optimizer: bool
    """Whether it contains the optimizer's kernels: it is then a step, or several."""

    @property
    def mean_ns(self) -> int:
        """Mean length."""
        return (self.end_ns - self.start_ns) // self.repeats


@dataclass(frozen=True, kw_only=True)
class RangeProposal:
    """Ranges of the capture that could stand for steps."""

    names: list[str]
    """Kinds of names, numbers as #."""
    count: int
    """Steps that they would give; 1: one stretch to analyse."""
    launches_frac: float
    """Of what was launched: inside of them."""
    option: str
    """For the command line, quoted."""
