"""Which profiler a run uses, and why."""

import importlib.util
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.installation import install_command, install_package
from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.nsys.command import OVERRIDE, Nsys, find_nsys, nvtx_trouble

Requested: TypeAlias = Literal["auto", "nsys", "torch", "none"]
Profiler: TypeAlias = Literal["nsys", "torch", "none"]

OLD_NVTX = "Install nvtx==0.2.11, use a newer nsys, or take --profiler torch."


@dataclass(frozen=True, kw_only=True)
class ProfilerChoice:
    """The profiler of a run."""

    profiler: Profiler
    reason: str
    """One line for the person who started the run."""
    nsys: Nsys | None = None
    """The nsys to run under; None for every other profiler."""


def choose_profiler(requested: str, *, device: DeviceKind, nsys: Nsys | None = None) -> ProfilerChoice:
    """The profiler for `--profiler requested` on this machine. `nsys` None: look for it.

    auto takes nsys where it is installed and the ranges will reach it, else the PyTorch profiler, else
    none. Raises TraceError where `nsys` or `torch` is asked for and cannot be had, ValueError for a word
    that is no profiler.
    """
    if requested not in get_args(Requested):
        raise ValueError(f"--profiler {requested!r}: one of {', '.join(get_args(Requested))}")
    if requested == "none":
        return ProfilerChoice(profiler="none", reason="no profiler: asked for")
    if requested == "torch":
        if not _importable("torch"):
            raise TraceError("--profiler torch", "torch is not installed.", f"{install_command('train')}.")
        return ProfilerChoice(profiler="torch", reason="PyTorch profiler: asked for")
    found = nsys or find_nsys()
    trouble = _nsys_trouble(found, device)
    if found is not None and trouble is None:
        why = "asked for" if requested == "nsys" else f"installed at {found.path}"
        return ProfilerChoice(profiler="nsys", reason=f"{found.label}: {why}", nsys=found)
    assert trouble is not None
    what, remedy = trouble
    if requested == "nsys":
        raise TraceError("--profiler nsys", f"{what}.", remedy)
    if _importable("torch"):
        return ProfilerChoice(profiler="torch", reason=f"PyTorch profiler: {what}")
    return ProfilerChoice(profiler="none", reason=f"no profiler: {what}, and torch is not installed")


def _nsys_trouble(nsys: Nsys | None, device: DeviceKind) -> tuple[str, str] | None:
    """(what is wrong, remedy), or None where the ranges of a run will be captured."""
    if nsys is None:
        return "nsys is not installed", f"Install Nsight Systems, or name its program in {OVERRIDE}."
    if not _importable("nvtx"):
        if device == "cuda":
            return None  # torch's CUDA build brings its own ranges.
        return "the nvtx package is not installed", f"{install_package('nvtx==0.2.11')}."
    incompatible = nvtx_trouble(nsys)
    return None if incompatible is None else (incompatible, OLD_NVTX)


def _importable(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
