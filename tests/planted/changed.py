"""Planted jobs with other settings: what that makes of their kernels and messages, said here once more.

Work is in proportion to tokens and inverse to tensor parallelism; what a rank moves over TP to
(tp - 1) / tp of the activations; over DP to its parameters and (replicas - 1) / replicas. Between stages a
rank sends its tp-th of the activations: these jobs gather and scatter them over TP.
"""

from __future__ import annotations

from dataclasses import replace

from tests.planted.spec import JobSpec


def with_chunks(spec: JobSpec, vpp: int) -> JobSpec:
    """Other model chunks on every stage. The output layer stays whole."""
    part = spec.vpp / vpp
    forward, backward = (round(ns / part) for ns in spec.output_ns)
    return replace(
        spec,
        vpp=vpp,
        compute_factor=spec.compute_factor * part,
        transfer_factor=spec.transfer_factor * part,
        output_ns=(forward, backward),
    )


def with_micro_batches(spec: JobSpec, count: int) -> JobSpec:
    """More or fewer of the same size: the global batch follows."""
    return replace(spec, micro_batches=count)


def with_size(spec: JobSpec, times: float) -> JobSpec:
    """Micro-batches so many times as large, so fewer: the same global batch."""
    return replace(
        spec,
        micro_batches=round(spec.micro_batches / times),
        compute_factor=spec.compute_factor * times,
        size_factor=spec.size_factor * times,
        pp_transfer_ns=round(spec.pp_transfer_ns * times),
    )


def with_tensor(spec: JobSpec, tp: int) -> JobSpec:
    """Another width, and replicas for the same number of ranks. Micro-batches follow the global batch."""
    dp = spec.dp * spec.tp // tp
    held = spec.tp / tp
    return replace(
        spec,
        tp=tp,
        dp=dp,
        micro_batches=spec.micro_batches * spec.dp // dp,
        compute_factor=spec.compute_factor * spec.tp / tp,
        size_factor=spec.size_factor * _moved(tp) / _moved(spec.tp),
        pp_transfer_ns=round(spec.pp_transfer_ns * spec.tp / tp),
        dp_factor=spec.dp_factor * held * _moved(dp * spec.cp) / _moved(spec.dp * spec.cp),
    )


def _moved(members: int) -> float:
    return (members - 1) / members
