"""FLOPs and bytes of every kernel of a device: by the shapes that the capture states, else by the model's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass as K
from perfdoc.analyzers.kernels.attributed import AttributedKernels
from perfdoc.analyzers.work.from_model import work_from_model
from perfdoc.analyzers.work.from_shapes import work_from_shapes
from perfdoc.analyzers.work.operator_work import MODEL, NOTHING, SHAPES, KernelWork

_AGREE = 0.01
"""Of the FLOPs that both know: more than this apart, the model is not the one that ran."""

_MATRIX = (K.GEMM, K.ATTENTION)
"""Kernels that the model's shape may know."""


def kernel_work(view: DeviceView, rows: I64, kernels: AttributedKernels | None = None) -> KernelWork:
    """The work of some kernels of a device.

    rows: of Trace.kernels. kernels: those of the window, with their parts; None leaves the model out.
    """
    shapes = work_from_shapes(view, rows)
    if kernels is None:
        return shapes
    model = work_from_model(view, kernels, rows)
    if not (shapes.source == SHAPES).any():
        reason = f"{shapes.reason}; {model.reason}" if model.reason else ""
        return replace(model, reason=reason)
    if model.reason:
        left = np.isnan(shapes.flops) & np.isin(view.kinds.class_code[rows], _MATRIX)
        return replace(shapes, notes=(model.reason,)) if left.any() else shapes
    both = (shapes.source == SHAPES) & (model.source == MODEL) & ~np.isnan(shapes.flops)
    known = float(shapes.flops[both].sum())
    apart = float(np.abs(model.flops[both] - shapes.flops[both]).sum())
    if apart > _AGREE * known:
        by = f"{apart / known:.0%} " if known else ""
        note = f"operator shapes and the model's are {by}apart in FLOPs, so that the model's are left out"
        return replace(shapes, notes=(note,))
    return _together(shapes, model)


def _together(shapes: KernelWork, model: KernelWork) -> KernelWork:
    """The model's where the shapes say nothing."""
    new = shapes.source == NOTHING
    filled = {
        name: np.where(new, getattr(model, name), getattr(shapes, name))
        for name in ("flops", "bytes", "dtype", "source", "call")
    }
    shifted = np.where(model.operator >= 0, model.operator + len(shapes.operators), -1)
    return KernelWork(
        **filled,
        operator=np.where(new, shifted, shapes.operator),
        operators=(*shapes.operators, *model.operators),
        notes=model.notes,
    )
