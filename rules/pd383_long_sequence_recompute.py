"""PD383: long sequences that are made to fit by computing layers twice."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.rules.case import Case
from perfdoc.rules.degrees import sequence_of
from perfdoc.rules.gain import at_most, ceiling, predicted
from perfdoc.rules.relayout import sequence_allows
from perfdoc.rules.rule import Advice, Evidence, Meta, Verdict

META = Meta(
    code="PD383",
    title="Long sequences paid for with recomputation",
    why="Activations grow with the sequence. Full recomputation makes room by computing each layer's forward "
    "pass again, about a third of the work; context parallelism divides activations and repeats nothing.",
    sources=("seed 000", "seed 001", "seed 003"),
    topic="long_sequence",
    needs=("trace", "settings"),
    advice=("ls_problem", "ls_recompute_offload", "cp_ssm"),
)

LONG = 8192
"""Tokens of a sequence from which on guides see a use for context parallelism."""
MIN_FRAC = 0.05
"""Of the window, mean over ranks: kernels that compute a forward pass again."""
SHORT_FRAC = 0.05
"""Of a GPU's memory: with less that was never reserved, memory is short."""
_CP, _GRANULARITY = "context_parallel_size", "recompute_granularity"
_STATE_SPACE = re.compile(r"(?i)chunk_scan|chunk_state|selective_scan|state_passing")


def evaluate(case: Case) -> Verdict:
    """Fires for sequences of `LONG` tokens or more where recomputation takes `MIN_FRAC` of the window; and,
    as information, where nothing is recomputed and a snapshot shows memory to be short."""
    length = sequence_of(case)
    if length is None:
        return Verdict(state="skipped", reason="the length of sequences is not known")
    if length < LONG:
        return Verdict(state="not_applicable", reason=f"sequences of {length:,} tokens are not long")
    known, granularity = case.setting(_GRANULARITY)
    times = [rank.kernel_parts.recompute_ns for rank in case.ranks]
    share = None if not times or None in times else case.share(_recompute_ns)
    evidence = [Evidence(label="tokens of a sequence", value=f"{length:,}")]
    if any(_STATE_SPACE.search(k.name) for rank in case.ranks for k in rank.kernel_times):
        evidence.append(
            Evidence(label="state-space layers", value="yes: context parallelism divides these too")
        )
    if share is not None:
        evidence.append(Evidence(label="computed again, mean over ranks", value=f"{share:.1%}"))
    if share is not None and share >= MIN_FRAC:
        return _recomputes(case, granularity if known else None, evidence)
    if known and granularity is None:
        return _short_of_memory(case, evidence)
    if share is None:
        return Verdict(state="skipped", reason="what is computed again is not known", evidence=evidence)
    return Verdict(state="passes", evidence=evidence)


def _recompute_ns(rank: RankMeasurement) -> int:
    return rank.kernel_parts.recompute_ns or 0


def _recomputes(case: Case, granularity: object, evidence: list[Evidence]) -> Verdict:
    gain = at_most(predicted(case, "without_recompute"), "what context parallelism costs is not in it")
    gain = gain or ceiling(case, _recompute_ns, "what is computed again")
    return Verdict(
        state="fires",
        reason="layers are computed twice so that their activations need not be kept",
        evidence=evidence,
        advice=list(_advice(case, granularity)),
        remedy="Where context parallelism does not fit, recompute only what is cheap (recompute_modules), or "
        "offload activations to the host where the link is fast.",
        gain=gain,
        verify="Run again: the recompute share falls, the peak of memory stays below the device's, and "
        "exposed CP communication stays small.",
        false_alarm="Memory that is short for weights and optimizer states, which context parallelism "
        "divides less than activations.",
    )


def _advice(case: Case, granularity: object) -> Iterator[Advice]:
    cp, dp = case.degree(_CP), case.dp
    if cp is not None and dp is not None and dp % 2 == 0 and sequence_allows(case, 2 * cp):
        yield Advice(
            knob=_CP,
            to=2 * cp,
            why="halves the activations of each GPU without computing anything twice",
            costs=f"half the replicas, DP {dp // 2}, and the exchange of keys and values",
        )
    if granularity == "full":
        yield Advice(
            knob=_GRANULARITY,
            to="selective",
            why="computes only parts of a layer again, which is cheap beside products",
            costs="more memory for activations than full recomputation",
        )
        for knob in ("recompute_method", "recompute_num_layers"):
            known, now = case.setting(knob)
            if known and now is not None:
                yield Advice(knob=knob, to=None, why="belongs to full recomputation")


def _short_of_memory(case: Case, evidence: list[Evidence]) -> Verdict:
    if case.memory is None or case.memory.state != "measured":
        return Verdict(state="passes", reason="nothing is recomputed", evidence=evidence)
    devices = [d for rank in case.memory.ranks for d in rank.devices]
    failed = sum(d.oom_events or 0 for d in devices)
    free = [
        d.headroom_bytes / (d.headroom_bytes + d.peak_reserved_bytes)
        for d in devices
        if d.headroom_bytes is not None and d.peak_reserved_bytes
    ]
    if failed:
        evidence.append(Evidence(label="allocations that failed", value=str(failed)))
    if free:
        evidence.append(Evidence(label="memory never reserved, least of any GPU", value=f"{min(free):.1%}"))
    if not failed and not free:
        return Verdict(state="skipped", reason="whether memory is short is not known", evidence=evidence)
    if not failed and min(free) >= SHORT_FRAC:
        return Verdict(state="passes", reason="nothing is recomputed", evidence=evidence)
    grace = case.gpu is not None and case.gpu.grace
    return Verdict(
        state="fires",
        level="information",
        reason="activations of long sequences leave no memory",
        evidence=evidence,
        advice=[
            *_advice(case, None),
            Advice(knob=_GRANULARITY, to="selective", why="keeps less of each layer at a small cost in time"),
        ],
        remedy="Offloading activations to the host is the other way"
        + (
            ", over Grace's NVLink-C2C a fast one."
            if grace
            else "; over PCIe it may take longer than computing."
        ),
        verify="Record a snapshot again: the peak falls.",
        false_alarm="A peak outside of the training step, such as the optimizer's first one.",
    )
