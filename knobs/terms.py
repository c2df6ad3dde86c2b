"""Terms of conditions that are too long for an expression."""

from __future__ import annotations

from perfdoc.knobs.condition import Term
from perfdoc.knobs.configuration import Undecided, View
from perfdoc.knobs.pipeline_layout import LAYOUT, stages_of

FLOAT8_CONVERTERS = ("quantize.linear.float8", "quantize.dense.float8", "float8")
"""torchtitan's, by version, the newest first."""
OLD_FLOAT8 = "float8_linear"
_PP, _VPP = "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"
_FIRST, _LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"


def _uneven_rest_does_not_divide(v: View) -> bool:
    ends = [v.number(name) for name in (_FIRST, _LAST) if v(name) is not None]
    if not ends:
        return False
    rest, stages = v.number("num_layers") - sum(ends), v.pp - len(ends)
    if rest < 0 or stages < 0 or (stages == 0) != (rest == 0):
        return True
    return any(size % v.vpp for size in ends) or (stages > 0 and rest % (stages * v.vpp) != 0)


def _micro_batches(v: View) -> int:
    samples = v.number("micro_batch_size") * v.dp
    if v.number("global_batch_size") % samples:
        raise Undecided("global_batch_size")  # another rule says so
    return v.number("global_batch_size") // samples


def _layout_does_not_fit(v: View) -> bool:
    written = v(LAYOUT)
    if not isinstance(written, str | tuple):
        return False
    layout = stages_of(written)
    if layout is None:
        return isinstance(written, str)
    try:
        mtp_layers = 0 if v("mtp_num_layers") is None else v.number("mtp_num_layers")
    except Undecided:
        mtp_layers = "".join(layout.stages).count("m")
    return bool(layout.problem(num_layers=v.number("num_layers"), pp=v.pp, mtp_layers=mtp_layers))


def _layout_against_vpp(v: View) -> bool:
    written, vpp = v(LAYOUT), v(_VPP)
    layout = stages_of(written) if isinstance(written, str | tuple) else None
    return layout is not None and vpp is not None and len(layout.stages) != v.pp * v.vpp


def _graph_scope(v: View) -> set[str]:
    """Scopes of CUDA graphs; empty for whole layers, which `full` says too."""
    return {str(s) for s in v.items("cuda_graph_scope")} - {"full"}


def _recomputed(v: View) -> set[str]:
    """Modules of selective recomputation; attention where nothing is named."""
    return {str(m) for m in v.items("recompute_modules")} or {"core_attn"}


def _verl_uses_fsdp(v: View) -> bool:
    """Whether the engine is FSDP: by its name, else because FSDP's settings are made."""
    try:
        return v("verl_strategy") in ("fsdp", "fsdp2")
    except Undecided:
        if "verl_strategy" in v.unknown:
            raise
        return v("verl_param_offload") is not None


def _pipeline_batches(v: View) -> int:
    """torchtitan's micro-batches of a rank; 0 where its samples do not divide."""
    piece = v.or_default("pipeline_microbatch_size")
    if isinstance(piece, bool) or not isinstance(piece, int):
        raise Undecided("pipeline_microbatch_size")
    samples = v.number("local_batch_size")
    return samples // piece if samples % piece == 0 else 0


_BATCHES = ("global_batch_size", "micro_batch_size", "data_parallel_size", "world_size")
_DEGREES = ("tensor_model_parallel_size", _PP, "context_parallel_size")
TERMS = {
    "uneven_rest_does_not_divide": Term(
        is_=_uneven_rest_does_not_divide, reads=(_FIRST, _LAST, "num_layers", _PP, _VPP)
    ),
    "micro_batches": Term(is_=_micro_batches, reads=(*_BATCHES, *_DEGREES)),
    "layout_does_not_fit": Term(
        is_=_layout_does_not_fit, reads=(LAYOUT, "mtp_num_layers", "num_layers", _PP)
    ),
    "layout_against_vpp": Term(is_=_layout_against_vpp, reads=(LAYOUT, _PP, _VPP)),
    "graph_scope": Term(is_=_graph_scope, reads=("cuda_graph_scope",)),
    "whole_layer_graph": Term(
        is_=lambda v: not _graph_scope(v) or "full_iteration" in _graph_scope(v), reads=("cuda_graph_scope",)
    ),
    "recomputed": Term(is_=_recomputed, reads=("recompute_modules",)),
    "verl_uses_fsdp": Term(is_=_verl_uses_fsdp, reads=("verl_strategy", "verl_param_offload")),
    "pipeline_batches": Term(is_=_pipeline_batches, reads=("pipeline_microbatch_size", "local_batch_size")),
}
