"""PD342: tokens on their way to experts while nothing computes."""

from __future__ import annotations

from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import advise, proposed
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.degrees import EP
from perfdoc.rules.facts.exposed import ceiling_of_transfer, judged
from perfdoc.rules.facts.hidden import only_for_gpus

META = Meta(
    code="PD342",
    title="Exposed expert-parallel communication",
    why="Dispatch and combine stand between the router, the experts and the next layer. Only another "
    "micro-batch's compute, or a shared expert's, can hide them.",
    sources=("seed 000", "seed 001", "seed 003", "seed 004"),
    topic="moe",
    time=("exposed_comm.ep",),
    needs=("trace",),
    advice=(
        "moe_ep_overlap_future",
        "moe_ep_overlap_verl",
        "moe_ep_comm_opt",
        "moe_batch_overlap",
        "moe_tldr",
    ),
)

_OVERLAP, _DISPATCHER = "overlap_moe_expert_parallel_comm", "moe_token_dispatcher_type"
_SHARED, _DELAY = "moe_shared_expert_overlap", "delay_wgrad_compute"
_QUEUES = "cuda_device_max_connections"
_CLAIM = "guides claim 15 to 25 % for hiding the exchange; nothing here predicts it"


def evaluate(case: Case) -> Verdict:
    """Fires at `exposed.MIN_FRAC` of the window, mean over ranks."""
    if on_cpu := only_for_gpus(case):
        return on_cpu
    if case.degree(EP) == 1:
        return Verdict(state="not_applicable", reason="there is no expert parallelism")
    nothing, evidence = judged(case, "ep")
    if nothing is not None:
        return nothing
    advice = [*_exchange(case), *_overlap(case)]
    return Verdict(
        state="fires",
        worst=worst_exposed(case, "ep"),
        reason="compute does not hide it",
        evidence=evidence,
        advice=advice,
        remedy="" if advice else _OTHERWISE if case.configuration.values else _NO_CONFIGURATION,
        otherwise=_OTHERWISE,
        gain=ceiling_of_transfer(case, "ep"),
        verify="Run again: exposed EP communication in the ledger falls, and the step time by as much.",
        false_alarm="Unevenly loaded experts: ranks then wait for the one with most tokens, which overlap "
        "does not change.",
    )


_NO_CONFIGURATION = "Give the job's configuration (--config FILE): without it no setting can be advised."
_OTHERWISE = (
    "No setting that is known would hide it as the job is. Let the exchange run beside another micro-batch "
    "(with a pipeline that needs virtual stages; full recomputation forbids it), keep expert ranks inside "
    "the NVLink domain (PD343), or use fewer of them."
)


def overlap_allowed(case: Case) -> bool:
    """Whether this rule fires, and advises the 1F1B overlap."""
    advice = evaluate(case).advice
    return any(p.knob == _OVERLAP and not p.forbidden for p in proposed(case, advice))


def _exchange(case: Case) -> list[Advice]:
    if not case.is_set_to(_DISPATCHER, "allgather"):
        return []
    why = "sends each token only where its experts are, instead of all tokens everywhere"
    return [advise(knob=_DISPATCHER, to="alltoall", why=why)]


def _overlap(case: Case) -> list[Advice]:
    """The overlap and what it needs, first what it needs; it is available since megatron-core 0.16."""
    if not case.is_set_to(_OVERLAP, False):
        return []
    found = []
    if case.is_set_to(_SHARED, True):
        why = "gives way: both fill the same gaps, and megatron-core takes one of them"
        found.append(advise(knob=_SHARED, to=False, why=why))
    if case.is_set_to(_QUEUES, 1):
        costs = "Hopper's tensor- and context-parallel overlap wants 1: measure which is worth more"
        why = "lets the exchange run beside compute"
        found.append(advise(knob=_QUEUES, to=32, why=why, costs=costs))
    why = f"runs forward and backward of two micro-batches side by side; {_CLAIM}"
    costs = "activations of one more micro-batch; torch 2.6 and megatron-core 0.16 or newer"
    found.append(advise(knob=_OVERLAP, to=True, why=why, costs=costs))
    if case.is_set_to(_DELAY, False):
        why = "leaves weight gradients as compute to hide the exchange under"
        found.append(advise(knob=_DELAY, to=True, why=why, costs="Transformer Engine 2.7 or newer"))
    return found
