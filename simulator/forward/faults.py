"""What can be wrong with a simulated job: one row of a table each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfdoc.kept import table
from perfdoc.records import dataclass
from perfdoc.simulator.forward.layout import Layout

_NO_OVERLAP: Mapping[str, Mapping[str, bool]] = MappingProxyType(
    {
        "dp": {"overlap_grad_reduce": False, "overlap_param_gather": False},
        "tp": {"overlap_tp": False},
        "cp": {"overlap_cp": False},
        "ep": {"overlap_ep": False},
    }
)


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Everything that is wrong with a job; the defaults are nothing."""

    norm_factor: float = 1.0
    """How much longer norms take beside resident communication."""
    launch_ns: int = 0
    """What the host does in addition before each launch of the first two forward passes of a step."""
    gc_ns: int = 0
    """One collection a step, on one rank, another in every step."""
    data_ns: int = 0
    """In addition to what loading a batch takes, on every rank."""
    late: tuple[int, float] | None = None
    """(rank, factor): its kernels take so many times as long."""
    moved_layers: int = 0
    """From the first stage to the last."""
    fp32_reduce: bool = False
    many_connections: bool = False
    """Collectives of the backward pass stay queued behind the GEMM that was launched before them."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a fault changes."""

    layout: Layout
    faults: Faults = field(default_factory=Faults)


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """A row of the table."""

    default: str
    value: str
    """What the value is, for people."""
    what: str
    apply: Callable[[Job, str], Job]
    """Raises ValueError, one line without the fault's name, for a value that cannot be."""
    shows_in: str
    """Where a report shows it."""
    edit: str = ""
    """The edit that removes it, if any."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A fault with its value."""

    name: str
    value: str


def _number(text: str, low: float, high: float) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text) or not low <= float(text) <= high:
        raise ValueError(f"{text!r} is not a number from {low:g} to {high:g}")
    return float(text)


def _whole(text: str, low: int, high: int) -> int:
    number = _number(text, low, high)
    if number != int(number):
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


def _planted(job: Job, **fields: Any) -> Job:
    return replace(job, faults=replace(job.faults, **fields))


def _time(key: str, scale: float) -> Callable[[Job, str], Job]:
    """A number goes into a field of Faults, times a scale as whole ns."""
    return lambda job, text: _planted(job, **{key: int(_number(text, 0, 1e6) * scale + 0.5)})


def _flag(key: str) -> Callable[[Job, str], Job]:
    def apply(job: Job, text: str) -> Job:
        if text:
            raise ValueError(f"{text!r}: it takes no value")
        return _planted(job, **{key: True})

    return apply


def _late(job: Job, text: str) -> Job:
    rank, _, factor = text.partition(":")
    where = _whole(rank, 0, job.layout.world_size - 1)
    return _planted(job, late=(where, _number(factor or "1.2", 1, 100)))


def _shares_weights(job: Job) -> None:
    if job.layout.dp * job.layout.cp == 1:
        raise ValueError("it needs dp or cp above 1: no gradients are exchanged")


def _norms(job: Job, text: str) -> Job:
    if job.layout.world_size == 1:
        raise ValueError("it needs more than one rank: nothing communicates")
    return _planted(job, norm_factor=_number(text, 1, 100))


def _fp32(job: Job, text: str) -> Job:
    made = _flag("fp32_reduce")(job, text)
    _shares_weights(job)
    return made


def _connections(job: Job, text: str) -> Job:
    made = _flag("many_connections")(job, text)
    if job.layout.tp == 1:
        raise ValueError("it needs tp above 1: there are no tensor-parallel collectives")
    if not job.layout.overlap_tp:
        raise ValueError("it needs overlap_tp=on: nothing is launched ahead of a GEMM")
    return made


def _buckets(job: Job, text: str) -> Job:
    _shares_weights(job)
    return replace(job, layout=replace(job.layout, bucket=int(_number(text, 0.01, 10_000) * 1e6)))


def _virtual(job: Job, text: str) -> Job:
    chunks = _whole(text, 1, 128)
    if job.layout.pp == 1:
        raise ValueError("it needs pp above 1")
    if chunks == job.layout.vpp:
        raise ValueError(f"the layout has vpp={chunks} already")
    return replace(job, layout=replace(job.layout, vpp=chunks))


def _no_overlap(job: Job, text: str) -> Job:
    if text not in _NO_OVERLAP:
        raise ValueError(f"{text!r} is none of {', '.join(_NO_OVERLAP)}")
    if text == "dp":
        _shares_weights(job)
    elif getattr(job.layout, text) == 1:
        raise ValueError(f"it needs {text} above 1")
    if not any(getattr(job.layout, key) for key in _NO_OVERLAP[text]):
        raise ValueError(f"the layout overlaps no {text} communication")
    return replace(job, layout=replace(job.layout, **_NO_OVERLAP[text]))


def _moved(job: Job, text: str) -> Job:
    if job.layout.pp == 1:
        raise ValueError("it needs pp above 1")
    return _planted(job, moved_layers=_whole(text, 1, 1000))


def _exposed(dimension: str) -> Callable[[Job, str], Job]:
    def apply(job: Job, text: str) -> Job:
        if text:
            raise ValueError(f"{text!r}: it takes no value")
        return _no_overlap(job, dimension)

    return apply


_APPLIED: Mapping[str, Callable[[Job, str], Job]] = {
    "norm_spin": _norms,
    "small_buckets": _buckets,
    "no_overlap": _no_overlap,
    "launch_starved": _time("launch_ns", 1e3),
    "gc": _time("gc_ns", 1e6),
    "slow_data": _time("data_ns", 1e6),
    "late_rank": _late,
    "uneven_stages": _moved,
    "virtual_stages": _virtual,
    "exposed_cp": _exposed("cp"),
    "exposed_ep": _exposed("ep"),
    "max_connections": _connections,
    "fp32_reduce": _fp32,
}
FAULTS: Mapping[str, FaultKind] = MappingProxyType(
    {
        name: FaultKind(apply=_APPLIED[name], **row)
        for name, row in table(Path(__file__).resolve().with_name("faults.yaml")).items()
    }
)


def parse_faults(words: Sequence[str]) -> tuple[Planted, ...]:
    """`gc`, `gc=200`. Raises ValueError, one line, for a name that is none or is given twice."""
    found: list[Planted] = []
    for word in words:
        name, given, value = word.partition("=")
        if name not in FAULTS:
            near = get_close_matches(name, FAULTS, 1, 0.4)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(FAULTS)}."
            raise ValueError(f"--fault: there is no {name!r}. {hint}")
        if any(f.name == name for f in found):
            raise ValueError(f"--fault: {name} is given twice.")
        found.append(Planted(name=name, value=value if given else FAULTS[name].default))
    return tuple(found)


def planted_in(layout: Layout, planted: Sequence[Planted]) -> Job:
    """The job with these faults. Raises ValueError, one line."""
    job = Job(layout=layout)
    for fault in planted:
        try:
            job = FAULTS[fault.name].apply(job, fault.value)
        except ValueError as error:
            raise ValueError(f"--fault {fault.name}={fault.value}: {error}.") from error
    return job
