"""What is captured of a run, as Megatron-Bridge and Megatron-LM spell it. Options of the command go first."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from perfdoc.profiling.window import ProfileWindow

DEFAULT_START, DEFAULT_STEPS = 10, 3


@dataclass(frozen=True, kw_only=True)
class ProfilingConfig:
    """The profiler, the profiled steps and ranks, and what else is recorded there."""

    use_nsys_profiler: bool = False
    use_pytorch_profiler: bool = False
    """Neither: `perfdoc run` takes nsys where it is installed, else the PyTorch profiler."""
    profile_step_start: Annotated[int, Meta(ge=1)] = DEFAULT_START
    """First profiled step; steps count from 1."""
    profile_step_end: Annotated[int, Meta(ge=2)] | None = None
    """The step after the last profiled one; null: three steps."""
    profile_ranks: tuple[Annotated[int, Meta(ge=0)], ...] | None = None
    """null: all."""
    record_shapes: bool = False
    """Of operators' inputs, by the PyTorch profiler."""
    nsys_gpu_metrics: bool = False
    """Counters of the GPU (SMs, memory, links), by nsys."""
    nsys_event_trace: bool = False
    """CUDA event records, by nsys: they prove which wait belongs to which record, and may make streams wait
    that did not, as NVIDIA warns and nobody here has measured."""
    record_memory_history: bool = True
    """On CUDA: allocations and frees of the step after the profiled ones, with their stacks."""
    memory_snapshot_path: str | None = None
    """A copy of the last snapshot, rank by rank (`x.pickle`: `x.rank0.pickle`); null: in the run directory
    only."""


def profiler_of(config: ProfilingConfig, asked: str | None) -> str:
    """What `--profiler` says, else what the settings say, else `auto`."""
    if asked is not None:
        return asked
    return "nsys" if config.use_nsys_profiler else "torch" if config.use_pytorch_profiler else "auto"


def window_of(
    config: ProfilingConfig,
    *,
    start: int | None = None,
    steps: int | None = None,
    ranks: frozenset[int] | None = None,
) -> ProfileWindow:
    """The profiled steps and ranks: options first, then the settings. Raises ValueError for an empty window.

    Settings 10 and 12: steps 10 and 11. Option start 20: steps 20 and 21, as many as the settings say.
    """
    first = config.profile_step_start if start is None else start
    end = config.profile_step_end
    if end is not None and end <= config.profile_step_start:
        raise ValueError(
            f"profiling.profile_step_end = {end}: not after profile_step_start {config.profile_step_start}"
        )
    asked = DEFAULT_STEPS if end is None else end - config.profile_step_start
    chosen = config.profile_ranks if ranks is None else tuple(sorted(ranks))
    return ProfileWindow(start=first, steps=asked if steps is None else steps, ranks=chosen or None)
