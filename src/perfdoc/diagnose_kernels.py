"""Kernel time of all ranks by class and by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from perfdoc import diagnosis as d
from perfdoc.analyzers.kernel_class.kernel_class import KernelClass
from perfdoc.analyzers.measure import CaptureMeasurement

TOP_KERNELS = 50
"""Kernel names in the diagnosis, by time."""


def kernels_of(captures: Sequence[CaptureMeasurement]) -> d.KernelsAnalysis:
    """Sums over all ranks' windows."""
    names: dict[tuple[str, str, KernelClass], list[int]] = defaultdict(lambda: [0, 0])
    for c in captures:
        for r in c.ranks:
            for k in r.kernel_times:
                entry = names[k.name, k.short_name, k.kernel_class]
                entry[0] += k.count
                entry[1] += k.total_ns
    total = sum(t for _, t in names.values())
    if not total:
        on_host = all(r.on_host for c in captures for r in c.ranks)
        return d.KernelsAnalysis(
            state="not_measured",
            reason="the ranks train on the CPU, which runs no kernels"
            if on_host
            else "no kernel rows inside the window (whole CUDA graphs hide theirs)",
            classes=[],
            top=[],
            other_frac=None,
            gemm_frac=None,
            linear_frac=None,
            linear_reason="",
        )
    parts = [r.kernel_parts for c in captures for r in c.ranks]
    known = [p for p in parts if p.linear_ns is not None]
    whole = sum(p.kernel_ns for p in known)
    classes: dict[KernelClass, list[int]] = defaultdict(lambda: [0, 0])
    for (_, _, kernel_class), (count, time) in names.items():
        classes[kernel_class][0] += count
        classes[kernel_class][1] += time
    ordered = sorted(names.items(), key=lambda item: (-item[1][1], item[0][0]))
    return d.KernelsAnalysis(
        state="measured",
        reason="",
        classes=[
            d.KernelClass(name=k.name.lower(), count=n, total_ns=t, share_frac=t / total)
            for k, (n, t) in sorted(classes.items(), key=lambda item: -item[1][1])
        ],
        top=[
            d.TopKernel(
                name=name,
                short_name=short,
                kernel_class=k.name.lower(),
                count=n,
                total_ns=t,
                mean_ns=t // n,
                share_frac=t / total,
            )
            for (name, short, k), (n, t) in ordered[:TOP_KERNELS]
        ],
        other_frac=classes[KernelClass.OTHER][1] / total,
        gemm_frac=classes[KernelClass.GEMM][1] / total,
        linear_frac=sum(p.linear_ns or 0 for p in known) / whole if whole else None,
        linear_reason=next((p.linear_reason for p in parts if p.linear_reason), ""),
    )
