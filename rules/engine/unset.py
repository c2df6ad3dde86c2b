"""Switches that are unknown, at what holds where nobody sets them; none of which a capture shows the use."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.knobs.configuration import Configuration, Undecided, View
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import catalogue

SHOWN_FRAC = 0.25
"""Of a dimension's communication: with as much of it hidden, something overlaps it already. Not so of TP, of
whose backward pass megatron-core hides a part by default."""
_BY_KERNELS = ("fp8", "fp4", "first_last_layers_bf16")
"""Beginnings of settings that kernels show, whatever is set."""
_OVERLAPS: Mapping[str, tuple[str, ...]] = {
    "dp": ("overlap_grad_reduce", "overlap_param_gather"),
    "ep": ("overlap_moe_expert_parallel_comm", "moe_shared_expert_overlap"),
}
_BY_DDP = {"overlap_grad_reduce"}
_BY_COLLECTIVE: Mapping[tuple[str, str], str] = {
    ("tp", "all_gather"): "sequence_parallel",
    ("tp", "reduce_scatter"): "sequence_parallel",
    ("dp", "all_gather"): "use_distributed_optimizer",
    ("dp", "reduce_scatter"): "use_distributed_optimizer",
    ("ep", "all_to_all"): "moe_token_dispatcher_type",
    ("ep", "send_recv"): "moe_token_dispatcher_type",
}


def unset_switches(
    configuration: Configuration, ranks: Sequence[RankMeasurement], *, by_ddp: bool = False
) -> dict[str, Value]:
    """Unknown switches and choices at their defaults, of the dialect or else of megatron-core. Sizes and
    degrees stay unknown, so do facts, environment variables, what is set to something that cannot be told,
    and what the captures show to be in use. by_ddp: whether PyTorch's DDP reduces gradients, beside the
    backward by itself."""
    dialects = [d for d in (configuration.dialect, "megatron_core", "megatron_lm") if d is not None]
    view, shown = View(configuration), set(_shown(ranks)) | (_BY_DDP if by_ddp else set())
    found: dict[str, Value] = {}
    for knob in catalogue().values():
        switch = knob.kind == "knob" and (knob.type == "bool" or (knob.type == "str" and knob.choices))
        default = next((d for d in dialects if d in knob.defaults), None)
        if not switch or default is None or knob.id in shown or knob.id.startswith(_BY_KERNELS):
            continue
        if knob.id not in configuration.unknown and _is_unknown(view, knob.id):
            found[knob.id] = knob.defaults[default]
    return found


def _is_unknown(view: View, knob: str) -> bool:
    try:
        view(knob)
    except Undecided:
        return True
    return False


def _shown(ranks: Sequence[RankMeasurement]) -> Iterator[str]:
    rows = [row for rank in ranks for row in rank.communication]
    for row in rows:
        if knob := _BY_COLLECTIVE.get((row.dimension, row.collective)):
            yield knob
    for dimension, knobs in _OVERLAPS.items():
        mine = [row for row in rows if row.dimension == dimension]
        total = sum(row.total_ns for row in mine)
        if total and sum(row.hidden_ns for row in mine) >= SHOWN_FRAC * total:
            yield from knobs
    if any(rank.kernel_parts.recompute_ns for rank in ranks):
        yield from ("recompute_granularity", "recompute_method")
    if _graphs(ranks):
        yield "cuda_graph_impl"


def _graphs(ranks: Collection[RankMeasurement]) -> bool:
    return any(rank.host.graphs.whole_graphs or rank.host.graphs.graph_kernels for rank in ranks)
