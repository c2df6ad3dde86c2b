"""FLOPs and bytes of every kernel of a device: by the shapes that the capture states, else by the model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys, said_by_names
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass as K
from perfdoc.analyzers.kernel_class.number_format import arithmetic_of
from perfdoc.analyzers.kernels.attributed import AttributedKernels
from perfdoc.analyzers.work.from_shapes import work_from_shapes
from perfdoc.analyzers.work.layer_gemms import Assignment, finishing, match_layers
from perfdoc.analyzers.work.model_products import Product, products_of, sequences_of
from perfdoc.analyzers.work.operator_work import (
    DTYPES,
    MODEL,
    NOTHING,
    SHAPES,
    KernelWork,
    OperatorCall,
    share_calls,
)
from perfdoc.profiling.flops import flops_per_token

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


_WIDTHS = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
"""Bytes of an element by arithmetic. FP8's outputs are wider, which is left out: bytes are the least."""
_GIVE = "--config FILE, or --model-config FILE --set mbs=1 seq=8192 tp=1 cp=1"
_LINEAR = ("linear", "gate", "up", "q_", "k_", "v_")
"""How the names of a layer's products begin that run in FP8."""
_ONE_SHAPE = 1.5
"""Medians of the durations of GEMMs of one shape lie within this factor."""
_SLACK = 1.1
"""A window of a step holds some layers of its neighbours, where the host runs ahead."""


def work_from_model(view: DeviceView, kernels: AttributedKernels, rows: I64) -> KernelWork:
    """Of some kernels of a device (rows of Trace.kernels, all of them among `kernels`)."""
    communicates = bool(view.kinds.is_communication[view.activity.kernel_rows].any())
    products = products_of(view.facts, communicates=communicates)
    if isinstance(products, str):
        return KernelWork.unknown(len(rows), f"no work from the model's shape: {products} ({_GIVE})")
    assignment = Assignment(len(kernels.rows))
    fits, seen = match_layers(view, kernels, products, assignment)
    if not (assignment.product >= 0).any():
        reason = "no fused attention marks layers of one kind"
        if seen:
            reason = f"none of {seen:,} stretches between attention kernels fits the model's shape"
        return KernelWork.unknown(len(rows), reason)
    _join_sums(view, kernels, assignment)
    _drop_unlikely_queries(view, kernels, assignment)
    if too_many := _too_many(view, assignment, communicates):
        return KernelWork.unknown(len(rows), too_many)
    work = _work(view, kernels, assignment, rows)
    if fits == seen:
        return work
    note = (
        f"{seen - fits:,} of {seen:,} stretches between attention kernels hold other GEMMs than the model's "
        "shape says: their work is not known"
    )
    return replace(work, notes=(note,))


def _join_sums(view: DeviceView, kernels: AttributedKernels, assignment: Assignment) -> None:
    """Split-K's sum belongs to the GEMM in front of it on its stream."""
    gemms = np.flatnonzero(kernels.classes == K.GEMM)
    sums = finishing(view, kernels.rows[gemms])
    if not sums.any():
        return
    stream = view.trace.kernels.stream[kernels.rows[gemms]]
    order = np.argsort(stream, kind="stable")
    gemms, sums, stream = gemms[order], sums[order], stream[order]
    owner = np.maximum.accumulate(np.where(sums, 0, np.arange(len(gemms))))
    mine = np.flatnonzero(sums & (stream[owner] == stream) & ~sums[owner])
    assignment.join(gemms[mine], gemms[owner[mine]])


def _drop_unlikely_queries(view: DeviceView, kernels: AttributedKernels, assignment: Assignment) -> None:
    """Where queries are wider than keys and values, three GEMMs are taken to be in this order; one that is
    no longer than the others shows another. Keys and values are of one shape: where their GEMMs differ,
    three are something else, such as a fused projection and the two of its LoRA."""
    table = view.trace.kernels
    products = assignment.products
    for phase in ("forward", "backward"):
        three = [
            i
            for name in ("q_proj", "k_proj", "v_proj")
            for i, (p, said) in enumerate(products)
            if p.name == name and said == phase
        ]
        if len(three) != 3:
            continue
        rows = [kernels.rows[assignment.product == i] for i in three]
        if not all(map(len, rows)):
            continue
        query, key, value = (float(np.median(table.end_ns[r] - table.start_ns[r])) for r in rows)
        wider = products[three[0]][0].flops != products[three[1]][0].flops
        blocks = [table.grid_blocks[r] for r in rows[1:]]
        apart = phase != "backward" and unlike((key, value), blocks)
        if apart or (wider and query <= max(key, value)):
            wrong = np.flatnonzero(np.isin(assignment.product, three))
            assignment.take_back(wrong)


def unlike(medians_ns: tuple[float, float], grids: Sequence[np.ndarray]) -> bool:
    """Whether two sets of GEMMs cannot be of one shape: other thread blocks, or other durations where the
    capture does not say how many there are."""
    blocks = [float(np.median(grid)) for grid in grids]
    if min(blocks) > 0:
        return blocks[0] != blocks[1]
    return max(medians_ns) > _ONE_SHAPE * min(medians_ns)


def _too_many(view: DeviceView, assignment: Assignment, communicates: bool) -> str:
    """Why the products found cannot be the model's: in whole steps they are no more than its count of FLOPs
    for the rank's share; empty where they may be, or where a step's micro-batches are not known."""
    facts, window = view.facts, view.window
    sequences, passes = sequences_of(facts), facts.micro_batches
    if passes is None and facts.global_batch_sequences and facts.dp and sequences:
        passes = facts.global_batch_sequences // (facts.dp * sequences)
    if window.kind != "steps" or not passes or not sequences or facts.model is None:
        return ""
    alone = None if communicates else 1
    tp, cp, pp = facts.tp or alone, facts.cp or alone, facts.pp or alone
    length = facts.sequence_length
    if tp is None or cp is None or pp is None or length is None:
        return ""
    shape = msgspec.structs.replace(facts.model, sequence_length=length)
    tokens = window.steps * passes * sequences * length
    output = 6 * shape.hidden_size * shape.vocabulary * (1 + (shape.mtp_layers or 0))
    # Stages have unequal numbers of layers: none has twice the mean.
    layers = (flops_per_token(shape) - output) * min(1.0, 2 / pp)
    most = tokens * (layers + output) / (tp * cp)
    if facts.recompute != "none":
        most *= 4 / 3  # each layer's forward once more; what no range says is called forward
    given = np.flatnonzero(assignment.product >= 0)
    calls, _ = row_keys(assignment.call[given])
    counted = np.array([float(p.counted) for p, _ in assignment.products])
    found = float(counted[assignment.product[given[calls]]].sum())
    if found > most * _SLACK:
        return (
            f"by the model's shape its GEMMs and attention have {found / most:.2f} times the FLOPs of the "
            "steps: model, batch or layout are wrong"
        )
    return ""


def _work(view: DeviceView, kernels: AttributedKernels, assignment: Assignment, rows: I64) -> KernelWork:
    known = np.flatnonzero(assignment.product >= 0)
    product, call = assignment.product[known], assignment.call[known]
    dtype = _dtypes(view, kernels.rows[known], product, assignment.products)
    first, operator = row_keys(product, dtype)
    every = assignment.products
    operators = tuple(
        _operator(every[p][0], every[p][1], DTYPES[d])
        for p, d in zip(product[first].tolist(), dtype[first].tolist(), strict=True)
    )
    return share_calls(
        rows,
        view.trace.kernels,
        kernels=kernels.rows[known],
        call=len(view.trace.operators) + call,
        operator=operator,
        operators=operators,
        dtype=dtype,
        source=MODEL,
    )


def _operator(product: Product, phase: str, dtype: str) -> OperatorCall:
    width = _WIDTHS.get(dtype)
    return OperatorCall(
        name=f"{product.name} {phase}",
        shapes=product.shapes,
        dtype=dtype,
        kind=product.kind,
        flops=product.flops,
        bytes=None if width is None else product.elements * width,
    )


def _dtypes(view: DeviceView, rows: I64, product: I64, products: list[tuple[Product, str]]) -> I64:
    """By the kernel's name where that says it, else the job's. A job in FP8 does attention and the output
    layer in another."""
    unknown, job = DTYPES.index("unknown"), view.facts.dtype
    names = view.trace.kernels.full_name[rows]
    said = said_by_names(
        view.trace.strings, names, lambda name: DTYPES.index(arithmetic_of(name) or "unknown"), unknown
    )
    usual = [
        DTYPES.index(job) if job in DTYPES and (job != "fp8" or p.name.startswith(_LINEAR)) else unknown
        for p, _ in products
    ]
    mine = np.array(usual, np.int64)[product]
    # cuDNN's attention is called f16 whichever of the two it is.
    either = np.array([p.kind == "attention" for p, _ in products], bool)[product]
    either &= (said == DTYPES.index("fp16")) & (mine == DTYPES.index("bf16"))
    return np.where((said != unknown) & ~either, said, mine)
