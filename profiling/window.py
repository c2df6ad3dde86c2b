"""The profiled window: which steps of which ranks lie in it, and what starts and stops their capture."""

import importlib
import inspect
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from perfdoc.profiling import ranges
from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.nsys.command import is_attached
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.whole_file import whole_file


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


_AFTER_THE_LAST = 4
"""Marks after the last range of the window. nsys loses what it got last of a process that is killed: without
them the end of the last step, which then seems to last until the process ended, hours later perhaps."""


class TorchCapture:
    """torch.profiler, to `traces/rank<N>.json.gz`.

    Of both captures `prepare` may be slow, and comes before the step before the window; `begin` and `end`
    bound what is captured.
    """

    def __init__(
        self, run: RunDirectory, rank: int, world_size: int, device: DeviceKind, *, shapes: bool = False
    ) -> None:
        self._path = run.trace_path(rank, "json.gz")
        self._facts = {"rank": rank, "world_size": world_size, "device": device}
        self._shapes = shapes
        self._profile: Any = None
        self._collecting = False

    def prepare(self) -> None:
        """Load the profiler. Raises TraceError where this rank has a trace already."""
        if self._path.exists():
            raise TraceError(self._path, "exists and is not overwritten.", "Give another run directory.")
        profiler: Any = importlib.import_module("torch.profiler")
        activities = [profiler.ProfilerActivity.CPU]
        if self._facts["device"] == "cuda":
            activities.append(profiler.ProfilerActivity.CUDA)
        arguments = {
            "activities": activities,
            "record_shapes": self._shapes,
            "acc_events": True,
            "experimental_config": sync_events() if self._facts["device"] == "cuda" else None,
        }
        self._profile = profiler.profile(**known_arguments(profiler.profile, arguments))
        self._profile.prepare_trace()

    def begin(self) -> str:
        """Collect from here on."""
        assert self._profile is not None
        self._profile.start_trace()
        self._collecting = True
        self._profile.add_metadata_json("perfdoc", json.dumps(self._facts))
        # nsys is not there, and NVTX would only cost.
        return ranges.enable(nvtx=is_attached())

    def end(self) -> None:
        """Stop and write. Raises OSError where the trace cannot be written."""
        ranges.disable()
        profile, self._profile = self._profile, None
        collecting, self._collecting = self._collecting, False
        if not collecting:
            return  # Writing a trace that never began ends the process (torch 2.13: segmentation fault).
        if self._facts["device"] == "cuda":
            importlib.import_module("torch.cuda").synchronize()
        profile.stop_trace()
        with whole_file(self._path) as part:
            profile.export_chrome_trace(str(part))


def known_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that this torch's function has: acc_events is younger than the rest."""
    known = inspect.signature(function).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in known.values())
    return {name: value for name, value in arguments.items() if takes_any or name in known}


def sync_events() -> Any:
    """A configuration with rows of synchronisations, which tie stream waits to event records; None where this
    torch has none (before 2.1)."""
    try:
        return importlib.import_module("torch._C._profiler")._ExperimentalConfig(enable_cuda_sync_events=True)
    except (ImportError, AttributeError, TypeError):
        return None


class NsysCapture:
    """nsys, which was started around this process; `collect_reports` takes its reports afterwards."""

    def __init__(self, device: DeviceKind) -> None:
        self._device = device

    def prepare(self) -> None:
        """Check that nsys is there. Raises TraceError where this process does not run under it."""
        if not is_attached():
            remedy = (
                "Start the run by the line that `perfdoc run --dry-run` prints, or take --profiler torch."
            )
            raise TraceError("--profiler nsys", "this process does not run under nsys.", remedy)

    def begin(self) -> str:
        """Open the capture range and emit ranges."""
        if self._device == "cuda":
            cuda: Any = importlib.import_module("torch.cuda")
            cuda.synchronize()
            cuda.check_error(cuda.cudart().cudaProfilerStart())
        through = ranges.enable(record_function=False)
        if not through:
            remedy = "Install nvtx==0.2.11."
            raise TraceError("--profiler nsys", "there is nothing to emit NVTX ranges with.", remedy)
        return through

    def end(self) -> None:
        """Close the capture range."""
        for _ in range(_AFTER_THE_LAST):
            ranges.mark("perfdoc.end")
        ranges.disable()
        if self._device == "cuda":
            cuda: Any = importlib.import_module("torch.cuda")
            cuda.synchronize()
            cuda.check_error(cuda.cudart().cudaProfilerStop())
