"""Communication of a dimension overlapped with compute, as far as program order and hardware queues allow.

The backward pass of a linear layer has two GEMMs: the gradient of its input, then that of its weights. The
first result is reduced over the tensor-parallel ranks between them, and the second does not need that; nor
does the first need the input that is all-gathered again for the second. With attention in parts, keys and
values of the next part travel while this one computes.

A stream waits for what its events say. Where a collective begins as a kernel ends that was launched later, it
was ready and waited in a hardware queue, as with CUDA_DEVICE_MAX_CONNECTIONS other than 1 and Megatron's
overlap of GEMMs and collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import numpy as np

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.simulator.replay.edits.edit import Change, Edit, Ways
from perfdoc.simulator.replay.edits.rewiring import (
    NOT_BY_DDP,
    NOT_BY_ZERO,
    Rewiring,
    arrivals,
    awaiting,
    is_transfer,
    neighbours,
    usual_lag_ns,
)
from perfdoc.simulator.replay.rebuilt import Rebuilt

_WAITS = (EdgeKind.EVENT, EdgeKind.INFERRED)


def gemms_overlapped(rebuilt: Rebuilt) -> Rebuilt:
    """The kernel after the next GEMM waits for tensor-parallel collectives, where that GEMM waits and does
    not need them. ValueError where there are none."""
    ours = np.flatnonzero(is_transfer(rebuilt, "tp"))
    waits, (_, after) = awaiting(rebuilt, ours, _WAITS)[ours], neighbours(rebuilt)
    gemm = np.append(rebuilt.kernel_class == KernelClass.GEMM, False)
    before = _launched_before(rebuilt, ours)
    follows = after[waits]
    # The gradient of the input is reduced; the GEMM of the weights' gradient comes next.
    reduced = (rebuilt.reduces[ours] == 1) & gemm[waits] & gemm[before] & (after[before] == waits)
    # What is gathered is for the second GEMM, if the first is reduced before that runs.
    reduced_behind = np.zeros(len(gemm), bool)
    reduced_behind[before[reduced]] = True
    gathered = (rebuilt.reduces[ours] == 0) & gemm[waits] & reduced_behind[waits] & gemm[follows]
    return _awaited_later(rebuilt, ours[reduced | gathered], waits[reduced | gathered], "tp")


def parts_overlapped(rebuilt: Rebuilt) -> Rebuilt:
    """The next part of attention waits for what this one waits for now. ValueError where none waits."""
    ours = np.flatnonzero(is_transfer(rebuilt, "cp"))
    waits, (_, after) = awaiting(rebuilt, ours, _WAITS)[ours], neighbours(rebuilt)
    attention = np.append(rebuilt.kernel_class == KernelClass.ATTENTION, False)
    moved = attention[waits] & attention[after[waits]]
    return _awaited_later(rebuilt, ours[moved], waits[moved], "cp")


def _launched_before(rebuilt: Rebuilt, tasks: I64) -> I64:
    """The last computation that was launched on the same rank before each of these."""
    work = rebuilt.computations
    found = np.full(len(tasks), NONE, np.int64)
    for theirs, mine in zip(rebuilt.by_rank(work), rebuilt.by_rank(tasks), strict=True):
        own = work[theirs]
        at = np.searchsorted(rebuilt.launch_ns[own], rebuilt.launch_ns[tasks[mine]]) - 1
        found[mine] = np.append(own, NONE)[at]
    return found


def _awaited_later(rebuilt: Rebuilt, tasks: I64, waits: I64, dimension: str) -> Rebuilt:
    """What waited for each of these waits no more; the computation behind it does."""
    if not len(tasks):
        raise ValueError(f"no compute kernel waits for {dimension} communication that it does not need")
    wires = Rewiring(rebuilt)
    awaited = np.full(len(rebuilt.start_ns), NONE, np.int64)
    awaited[tasks] = waits
    cut = np.isin(wires.kind, _WAITS) & (awaited[wires.source] == wires.target)
    wires.kept &= ~cut
    _, after = neighbours(rebuilt)
    wires.add(wires.source[cut], after[wires.target[cut]], wires.lag_ns[cut], EdgeKind.EVENT)
    return wires.made("this would create a dependency cycle (a compute kernel)")


_QUEUE_UNCERTAINTY_FRAC = 0.2
"""Communication that begins earlier takes memory bandwidth and SMs from the kernel beside it."""


def without_queueing() -> Edit:
    """Tensor-parallel collectives begin when what they wait for is done, not behind later kernels."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        graph, wires = rebuilt.graph, Rewiring(rebuilt)
        into = np.zeros(len(rebuilt.start_ns), bool)
        into[arrivals(rebuilt)[is_transfer(rebuilt, "tp")]] = True
        computes = graph.kind == TaskKind.COMPUTE
        later = rebuilt.launch_ns[wires.source] > rebuilt.launch_ns[wires.target]
        held = into[wires.target] & computes[wires.source] & later & (wires.kind == EdgeKind.INFERRED)
        # A short kernel's worth of queueing passes for the lag of an event.
        usual = usual_lag_ns(rebuilt, EdgeKind.EVENT, computes)
        slow = into[wires.target] & (wires.kind == EdgeKind.EVENT) & (wires.lag_ns > usual)
        queued = np.zeros(len(rebuilt.start_ns), bool)
        queued[wires.target[held]] = True
        if not held.any():
            raise ValueError("no tp communication begins as a later-launched kernel ends")
        wires.kept &= ~held
        wires.lag_ns = np.where(slow & queued[wires.target], usual, wires.lag_ns)
        return wires.made("never: edges are only removed")

    return Edit(
        name="tp communication not queued behind later kernels",
        apply=apply,
        uncertainty_frac=_QUEUE_UNCERTAINTY_FRAC,
        leaves=("exposed_comm.tp", "idle.dependency"),
        assumptions=(
            "communication that begins as a later-launched kernel ends waited in the hardware queue",
            "no contention between communication and compute",
        ),
    )


_PARTS_FRAC = 0.2
"""Overlapped, both sides slow each other down, which the replay does not know."""
_WEIGHTS_FRAC = 0.3
"""The same, and where no range shows passes nothing tells what needs the weights and when."""
_ENDS_LAYERS = (2.0, 4.0)
"""Where the model is not known, embedding and output may be as large as so many layers each. More is not
always more, so what lies in between is tried as well."""
_EXPERTS = ((1.0, 0.0), (0.6, 0.1))
"""(share of the memory bandwidth that GEMMs with few tokens reach, how much longer two halves take than
one whole where model or GPU are not known), the best and the worst."""


def overlapped(dimension: Literal["dp", "tp", "cp", "ep"], *, bucket_bytes: int | None = None) -> Edit:
    """A dimension's communication as a program runs it that overlaps it.

    dp: gradients and weights in buckets beside the passes (overlap_weights.py). tp, cp: beside the kernels
    that do not need them. ep: in two halves (overlap_experts.py).

    bucket_bytes: dp: larger messages are cut to this first. Not given: where one holds more than two
    buckets of Megatron's usual size, 40 million parameters, it is cut to those.
    """
    apply: Callable[[Rebuilt], Rebuilt]
    variants: tuple[Callable[[Rebuilt], Rebuilt], ...] = ()
    share = _PARTS_FRAC
    said: tuple[str, ...]
    if dimension == "dp":
        share = _WEIGHTS_FRAC
        apply = partial(_weights, bucket_bytes=bucket_bytes)
        ends = (partial(_weights, bucket_bytes=bucket_bytes, ends_layers=n) for n in _ENDS_LAYERS)
        variants = (*ends, _as_it_is)
        said = (
            "a gradient bucket is reduced once complete; weights are all-gathered one bucket ahead",
            "layers have the parameters of the model; equal ones if the model is unknown",
        )
    elif dimension == "ep":
        from perfdoc.simulator.replay.edits.overlap_experts import experts_overlapped

        apply = experts_overlapped
        variants = tuple(partial(experts_overlapped, memory_frac=m, slower_frac=s) for m, s in _EXPERTS)
        said = ("tokens are dispatched in two halves; each overlaps with the experts' GEMMs of the other",)
    else:
        apply = gemms_overlapped if dimension == "tp" else parts_overlapped
        said = ("a kernel waits only for what it needs; the next one waits for the rest",)

    return Edit(
        name=f"{dimension} communication overlapped",
        apply=apply,
        uncertainty_frac=share,
        # What is awaited no longer also leaves no gap between its end and the next kernel's start.
        leaves=(f"exposed_comm.{dimension}", "idle.dependency"),
        assumptions=(*said, "no contention between communication and compute"),
        variants=variants,
        may_cost=True,
    )


def _weights(rebuilt: Rebuilt, *, bucket_bytes: int | None, ends_layers: float = 0.0) -> Rebuilt:
    """Where no range shows passes, so that nothing tells which layer a bucket is of, as other dimensions."""
    if not any(is_transfer(rebuilt, "dp")):
        raise ValueError("the capture shows no dp communication")
    from perfdoc.simulator.replay.edits.overlap_weights import in_buckets, until_optimizer, weights_overlapped

    if not all(len(r.passes) for r in rebuilt.ranks):
        return until_optimizer(rebuilt)
    if ends_layers and all(r.facts.model is not None for r in rebuilt.ranks):
        raise ValueError("embedding and output layer have the model's sizes")
    return weights_overlapped(in_buckets(rebuilt, bucket_bytes), ends_layers=ends_layers)


def _as_it_is(rebuilt: Rebuilt) -> Rebuilt:
    """Where no range shows passes, it may be overlapped as far as can be: what is exposed may be the last
    bucket, which the optimizer waits for."""
    if all(len(r.passes) for r in rebuilt.ranks):
        raise ValueError("passes show what is overlapped")
    return rebuilt


_GRADIENTS = "overlap_grad_reduce"


def _if_present(rebuilt: Rebuilt, dimension: str, make: Callable[[], Edit]) -> Edit | None:
    return make() if is_transfer(rebuilt, dimension).any() else None


def _beside_compute(
    dimension: Literal["dp", "tp", "cp", "ep"],
    rule: str,
    how: str = "",
    *,
    settings: str = "",
    ways: Ways = (),
    words: Mapping[str, str] | None = None,
) -> Change:
    make = partial(overlapped, dimension)
    return Change(
        key=f"overlapped_{dimension}",
        title=f"overlap of {dimension.upper()} communication{how}",
        settings=settings,
        words=words or {},
        family="overlap" if dimension == "dp" else f"overlap_{dimension}",
        rule=rule,
        time=f"exposed_comm.{dimension}",
        ways=ways,
        make=(lambda _: make())
        if dimension == "dp"
        else partial(_if_present, dimension=dimension, make=make),
    )


CHANGES = (
    _beside_compute(
        "dp",
        "PD101",
        settings=f"{_GRADIENTS}, overlap_param_gather",
        ways=({"overlap_param_gather": True, _GRADIENTS: True}, {_GRADIENTS: True}),
        words={
            "pytorch": "DDP's or FSDP's own",
            "DeepSpeed's file": "overlap_comm",
            **NOT_BY_DDP,
            **NOT_BY_ZERO,
        },
    ),
    # Not tp_comm_overlap, which hides what is beside every GEMM: megatron-core does this much without it.
    _beside_compute("tp", "PD111", " in the backward pass"),
    Change(
        key="without_queueing_tp",
        title="TP communication not queued behind compute",
        settings="cuda_device_max_connections",
        words={"pytorch": "CUDA_DEVICE_MAX_CONNECTIONS"},
        family="overlap_tp",
        rule="PD112",
        time="exposed_comm.tp",
        make=partial(_if_present, dimension="tp", make=without_queueing),
    ),
    _beside_compute("cp", "PD120"),
    # Not overlap_moe_expert_parallel_comm, which hides the exchange under another micro-batch's passes.
    _beside_compute("ep", "PD342", " in two halves of the tokens"),
)
