"""Exposed collectives far below the links' bandwidth lose time to latency, to one flat ring over all nodes or
to unaligned message sizes, not to the number of bytes."""

from collections.abc import Iterator
from dataclasses import replace

from perfdoc.analyzers.memory.formula import states_bytes
from perfdoc.results.figures import gib, per_cent, significant
from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.gain import predicted, upper_bound
from perfdoc.rules.engine.needs import GPUS, WINDOW, Need
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, informs, passes, skips
from perfdoc.rules.facts.culprit import is_as_much
from perfdoc.rules.facts.culprit_words import listed
from perfdoc.rules.facts.degrees import degrees_of, has_experts
from perfdoc.rules.facts.exposed import (
    Link,
    ceiling_of_transfer,
    communication,
    judged,
    reached_gbps,
    slow_transfers,
    usual_link,
)
from perfdoc.rules.facts.gradient_sums import summing_ranks

_OF_DP = communication("dp")
_EXCHANGED = Need(
    words=_OF_DP.words, missing=lambda case: None if _slow_ranks(case) else _OF_DP.missing(case)
)

META = Meta(
    title="Low bus bandwidth of data-parallel collectives",
    action="Raise the bus bandwidth of data-parallel collectives",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide"),
    topic="comm_overlap",
    time=("exposed_comm.dp",),
    needs=(GPUS, WINDOW, _EXCHANGED),
    advice=(
        "dp_hierarchical",
        "scale_hier",
        "scale_dp_three_levers",
        "mem_padding",
        "mlm_02",
        "mlm_05",
        "mlm_nccl_debug",
    ),
    for_servers=True,
)

LOW_LINK_FRAC = 0.5
"""Of the links' usual bandwidth: large messages reach 80 % and more."""
SMALL_FRAC = 0.25
"""Of the exposed transfer: if four times larger buckets are predicted to save this share, messages are too
small."""
RING_RANKS = 16
"""Smaller groups gain little from a hierarchical reduction or padded buckets."""
_LINKS = "Check the links of the ranks whose transfers take longer"
_MOST = "what the slowest rank's transfers take longer than the quickest's"
_DIMENSIONS = ("dp", "tp", "cp", "ep")
_UNKNOWN_LINK = "the bandwidth of the links between these ranks is not known (GPU, layout, or expert groups)"


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if exposed DP communication takes `exposed.MIN_FRAC` of the window at less than
    `LOW_LINK_FRAC` of the links' usual bandwidth. The gain of each remedy is not measured."""
    if (slow := _slow_ranks(case)) is not None:
        return slow
    nothing, evidence = judged(case, "dp")
    if nothing is not None:
        return nothing
    ranks, tp = summing_ranks(case), case.degree("tensor_model_parallel_size")
    dense = has_experts(case) is False or case.degree("expert_model_parallel_size") == 1
    link = None if ranks is None or tp is None or not dense or ranks < 2 else usual_link(case, ranks, tp)
    if link is None or ranks is None:
        return skips(_UNKNOWN_LINK, evidence)
    gbps = reached_gbps(case, "dp")
    if gbps is None:
        return skips("bus bandwidth is not known: the capture lacks message or group sizes", evidence)
    share = gbps / link.gbps
    evidence.append(("bus bandwidth of DP collectives", f"{significant(gbps)} GB/s"))
    value = f"{significant(link.gbps)} GB/s, {per_cent(share, 0)} reached"
    evidence.append((f"{ranks:,} ranks over {link.words}", value))
    reason = ""
    if share >= LOW_LINK_FRAC:
        reason = "bus bandwidth is near the links': fewer bytes or more overlap help, see PD101"
    elif _messages_are_small(case):
        reason = "messages are too small for full bandwidth: larger buckets help, see PD101"
    if reason:
        return passes(evidence, reason)
    return informs(
        reason="collectives reach little of the links' bandwidth",
        evidence=evidence,
        advice=list(_advice(case, link, ranks)),
        remedy="Read NCCL's log first (NCCL_DEBUG=INFO): a group on sockets, on one of several network cards "
        "or without GPUDirect is slow with any setting.",
        gain=ceiling_of_transfer(case, "dp"),
        verify="Run again: the bus bandwidth of DP rows in the communication table rises.",
        false_alarm="Slower network cards than usual, ranks not placed node after node, or waiting for late "
        "ranks if ranks were not compared.",
    )


def _slow_ranks(case: Case) -> Verdict | None:
    """Few ranks whose transfers take longer than the others', of the dimension in which that is most."""
    links = [cause.kinds_of_wait for cause in case.what_if.causes if cause.kind == "slow_link"]
    if not all("messages" in kinds for kinds in links):  # PD303 has it, by what it costs
        return None
    found = [(*slow_transfers(case, dimension), dimension) for dimension in _DIMENSIONS]
    slow, times, longer_ns, dimension = max(found, key=lambda one: one[2])
    if not slow:
        return None
    nothing, evidence = judged(case, dimension)
    if nothing is not None:
        return None
    # Of a pipeline each group of another stage may add as much.
    piped = case.job.may_be_piped or (case.job.stages or 1) > 1
    one = any([case.job.labels[m] for m in group.members] == slow for group in case.job.matches.groups)
    ms = longer_ns / max(1, min(r.window.steps for r in case.ranks)) / 1e6
    gain = None if piped and not one else upper_bound(ms, _MOST)
    whose = f"{dimension.upper()} transfers of {listed(slow)}"
    said = f"{whose} take {significant(times)} times as long as the others', for as many bytes"
    return fires(
        action=_LINKS,
        blames=said if is_as_much(case, gain, leads=True) else "",
        reason=said,
        evidence=evidence,
        remedy="Where their groups alone span servers, place ranks so that none does. Else "
        "check NIC, cable, switch port and the interface that NCCL takes (NCCL_DEBUG=INFO logs it).",
        gain=gain,
        verify="Run again: the transfers of all ranks take as long, in the table of waits by rank.",
        false_alarm="Groups of which some lie within a server and others do not.",
    )


def _messages_are_small(case: Case) -> bool:
    """Whether larger buckets alone are predicted to save `SMALL_FRAC` of the exposed transfer."""
    larger, exposed = predicted(case, "buckets_x4"), ceiling_of_transfer(case, "dp")
    if larger is None or exposed is None or not (larger.low_ms or 0.0) > 0:
        return False
    return (larger.mid_ms or 0.0) >= SMALL_FRAC * (exposed.high_ms or 0.0)


def _advice(case: Case, link: Link, ranks: int) -> Iterator[Advice]:
    sharded = case.is_set_to("use_distributed_optimizer", True)
    if sharded and ranks >= RING_RANKS and case.is_set_to("pad_buckets_for_high_nccl_busbw", False):
        yield advise(
            knob="pad_buckets_for_high_nccl_busbw",
            to=True,
            why=f"pads buckets to 65,536 elements, equal pieces for a ring of {ranks:,}; a guide claims 20 "
            "to 30 % more bandwidth",
            costs="up to 65,535 more elements of memory per bucket",
        )
    if link.crosses and sharded and ranks >= RING_RANKS:
        yield from _two_levels(case, ranks)
    if link.crosses and case.is_set_to("use_sharp", False):
        why = "reduces in the switches, on InfiniBand with SHARP: fewer bytes, fewer SMs"
        yield advise(knob="use_sharp", to=True, why=why, costs="only one group of the job can use it")
    if case.gpu is not None and case.gpu.nvls and case.is_set_to("nccl_nvls_enable", 0):
        why = "NVLS is switched off; forced on for a test, NCCL reduces inside NVLink's switches"
        yield advise(knob="nccl_nvls_enable", to=1, why=why, costs="memory for multicast buffers (PD509)")
    if case.gpu is not None and case.gpu.nvls and case.is_set_to("nccl_ub", False):
        where = "network cards, best with use_sharp," if link.crosses else "NVLink"
        yield advise(
            knob="nccl_ub",
            to=True,
            why=f"registered buffers: NCCL reduces over {where} with few SMs; a guide claims 20 % on NVLink",
            costs="buffers outside PyTorch's allocator, not with expandable_segments; sets "
            "NCCL_NVLS_ENABLE=1",
        )
    if not any(case.is_set_to("nccl_debug", level) for level in ("INFO", "TRACE")):
        why = "logs each group's transport, network cards and channels; for one run"
        yield advise(knob="nccl_debug", to="INFO", why=why, costs="a long log")


def _two_levels(case: Case, ranks: int) -> Iterator[Advice]:
    """Two instances, the fewest that split the ring: each doubling doubles the optimizer's memory again."""
    accumulates = case.is_set_to("reduce_scatter_with_fp32_accumulation", True)
    if case.degree("num_distributed_optimizer_instances") != 1 or ranks % 2 or accumulates:
        return
    more = _more_bytes(case, ranks)
    memory = "" if more is None else f": {gib(more)} more on each GPU, by formula"
    yield advise(
        knob="num_distributed_optimizer_instances",
        to=2,
        why=f"reduce-scatter and all-gather over {ranks // 2:,} ranks, all-reduce between the halves, "
        f"instead of one ring of {ranks:,}; if it helps, try 4 and more. A guide claims 5 to 15 %",
        costs=f"twice the memory of optimizer states{memory}",
    )


def _more_bytes(case: Case, ranks: int) -> int | None:
    """Additional optimizer-state bytes if half of `ranks` share them; None if unknown."""
    shape, at = case.job.facts.model, degrees_of(case)
    if shape is None or not shape.layers or at is None:
        return None
    now, then = (
        states_bytes(shape, replace(at, dp=n, cp=1), sharded_optimizer=True) for n in (ranks, ranks // 2)
    )
    return None if now is None or then is None else then - now
