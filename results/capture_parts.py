"""Parts of a capture: its start-up, one long pause, what repeats in it, ranges that could be steps."""

from __future__ import annotations

from perfdoc.records import dataclass


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """What runs once at the beginning. Times of calls may overlap, between kinds too."""

    start_ns: int
    end_ns: int
    compute_ns: int
    loading_ns: int
    """Loading code (modules, libraries) and, before nearly all kernels, weights."""
    allocation_ns: int
    communicator_ns: int
    """Making communicators."""
    work_frac: float
    """Of everything that runs on the device in the capture: what begins before the end of start-up."""
    left_out: bool
    """Whether the window begins after it; else it is part of the window, and no gain is predicted where it is
    much of it."""
    steps: int = 0
    """Cold steps that it is made of; 0 in a window without steps."""

    @property
    def duration_ns(self) -> int:
        """Length."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A stretch in which nothing runs, of a window without steps: one that holds most of its idle time, so
    that nothing shows it to come back. No gain is predicted then."""

    start_ns: int
    end_ns: int
    before: int
    """Kernels, graphs and copies of the window before it."""
    after: int

    @property
    def duration_ns(self) -> int:
        """Length."""
        return self.end_ns - self.start_ns


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
