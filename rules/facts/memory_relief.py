"""Memory savings for a job that runs out of memory, cheapest first; what recomputation costs."""

import math
from collections.abc import Iterator

from perfdoc.knobs.knob import Value
from perfdoc.results.figures import gib
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.gain import Gain, RankMeasurement, at_most, predicted
from perfdoc.rules.engine.needs import WINDOW, Missing, Need, applies, first_missing, given, skipped
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.capture import KERNELS, fused_attention_runs
from perfdoc.rules.facts.failed_request import first_failed, remedy_of_failed, tells_remedy
from perfdoc.rules.facts.graphs import of_parts, without_kernels
from perfdoc.rules.facts.memory_need import (
    cp_of,
    layer_activation_bytes,
    layer_input_bytes,
    micro_batches_in_flight,
    pp_of,
    tp_of,
    vpp_of,
)
from perfdoc.rules.facts.memory_room import Room, tightest
from perfdoc.rules.facts.precision import fp8_on, why_no_remainders

MIN_FRAC = 0.02
"""Of the window, mean over ranks: kernels recomputed for the backward pass."""


def _may_recompute(case: Case) -> bool:
    known, granularity = case.setting(GRANULARITY)
    return granularity is not None if known else case.job.facts.recompute != "none"


def _on_host(case: Case) -> Missing | None:
    return skipped("recomputed kernels cannot be identified on CPUs") if case.on_host else None


def _not_measured(case: Case) -> Missing | None:
    parts = next((r.kernel_parts for r in case.ranks if r.kernel_parts.recompute_ns is None), None)
    if parts is None:
        return None
    return skipped(parts.recompute_reason or "recomputed kernels were not measured")


NEEDS = (
    applies("recomputation on, or unknown", _may_recompute, "nothing is recomputed"),
    Need(words="GPUs", missing=_on_host),
    KERNELS,
    Need(words="identified recompute kernels", missing=_not_measured),
    WINDOW,
)


def again_ns(rank: RankMeasurement) -> int:
    """A rank's kernels recomputed for the backward pass."""
    return min(rank.kernel_parts.recompute_ns or 0, rank.ledger.compute)


def without_again(case: Case) -> Gain | None:
    """An upper bound of recomputing nothing: what these kernels exchange goes, too."""
    time, apart = of_parts(lambda p: p.phase == "recompute")
    return without_kernels(case, lambda r: max(time(r), again_ns(r)), apart, "all recomputed kernels")


def is_needless(case: Case) -> bool:
    """Whether activations are known to be recomputed although memory could store them: the core of a fused
    attention, or at least one layer."""
    if first_missing(case, NEEDS) is not None or given(case.share(again_ns)) < MIN_FRAC:
        return False
    room = tightest(case)
    return attention_alone(case) or (room is not None and not room.failed and bool(fewer(case, room)[1]))


def attention_alone(case: Case) -> bool:
    """Whether only core attention is recomputed, and it is fused, so that it stores nothing large."""
    modules = case.setting(MODULES)
    return (
        fused_attention_runs(case)
        and case.is_set_to(GRANULARITY, "selective")
        and modules in ((True, ("core_attn",)), (True, None))
    )


def fewer(case: Case, room: Room) -> tuple[list[Advice], int | None]:
    """Settings that recompute fewer layers, and how many layers are then stored; None if unknown.

    What a layer stores is known for fused attention only: unfused, a sequence x sequence matrix is added.
    """
    if not case.is_set_to(GRANULARITY, "full") or not fused_attention_runs(case):
        return [], None
    stage, each, flight = stage_layers(case), saved_layer_bytes(case), micro_batches_in_flight(case)
    vpp = vpp_of(case)
    method, count = case.setting(METHOD)[1], case.number(LAYERS)
    if not stage or not each or not flight or not vpp or room.spare_bytes is None:
        return [], None
    now = stage if method == "uniform" else min(stage, count) if method == "block" and count else None
    if now is None:
        return [], None
    kept = min(now, room.spare_bytes // (each * flight * vpp))
    if not kept:
        return [], 0
    gain = predicted(case, "without_recompute")
    left = now - kept
    costs = f"about {gib(kept * vpp * each * flight)} of {gib(room.spare_bytes)} available, by formula"
    if left:
        why = f"{left} of a stage's {stage} layers recomputed instead of {now}"
        part = at_most(gain, f"predicted without any recomputation; {left} layers of a stage keep it")
        to: list[tuple[str, Value]] = [(METHOD, "block"), (LAYERS, left)]
    else:
        why, part = "memory fits the activations of every layer", gain
        to = [(GRANULARITY, None), (METHOD, None), (LAYERS, None)]
    advice = [advise(knob=knob, to=value, why=why, costs=costs, gain=part) for knob, value in to]
    return advice, kept


_FSDP = ("use_megatron_fsdp", "use_torch_fsdp2")
GRANULARITY, METHOD, LAYERS = "recompute_granularity", "recompute_method", "recompute_num_layers"
MODULES, OFFLOAD = "recompute_modules", "cpu_offloading"


def pieces(case: Case, room: Room | None) -> list[Advice]:
    """Settings, cheapest in time first: replicated states and activations, then recomputed or offloaded
    activations, then a smaller micro-batch. Where the request that failed is a tensor of another kind, or
    memory is fragmented, recomputed activations would not help it: its own remedy is said."""
    what = request.what if (request := first_failed(room)) is not None else ""
    fused = _fused_loss(case) if what == "loss" else ()
    relief = () if room is not None and tells_remedy(room) else _activations(case, room)
    return [*fused, *_held_once(case), *relief, *_smaller_micro_batch(case)]


def _fused_loss(case: Case) -> Iterator[Advice]:
    """Megatron's: other frameworks have no setting for it."""
    if case.framework == "megatron" and not case.is_set_to("cross_entropy_loss_fusion", True):
        yield advise(knob="cross_entropy_loss_fusion", to=True, why="makes no second copy of the logits")


def _held_once(case: Case) -> Iterator[Advice]:
    replicas = (case.dp or 1) * (cp_of(case) or 1)
    if case.is_set_to("use_distributed_optimizer", False) and replicas > 1 and not _fsdp(case):
        why = f"shards the optimizer state over {replicas} replicas (DP x CP)"
        costs = "a weights all-gather after each step"
        yield advise(knob="use_distributed_optimizer", to=True, why=why, costs=costs)
    if case.is_set_to("sequence_parallel", False) and (tp := tp_of(case) or 1) > 1:
        why = f"shards norms, dropout and residuals over TP {tp} too"
        yield advise(knob="sequence_parallel", to=True, why=why)
    if case.is_set_to("use_precision_aware_optimizer", False) and not why_no_remainders(case):
        why = "master weights keep only the bits that bf16 weights lack: 2 of 4 bytes per parameter"
        yield advise(knob="use_precision_aware_optimizer", to=True, why=why, costs="Transformer Engine 2.1")


def _activations(case: Case, room: Room | None) -> Iterator[Advice]:
    """Offloading over a fast link, else recomputation: of cheap modules, then of whole layers."""
    granularity = case.setting(GRANULARITY)
    if granularity == (True, None):
        if host_memory_suits(case):
            yield from _offload(case, room)
        elif cheap_modules(case):
            yield from _selective(case)
        else:
            yield from _full(case, room)
    elif granularity == (True, "selective"):
        yield from _full(case, room)


def host_memory_suits(case: Case) -> bool:
    """Whether activations can be offloaded: a Grace CPU's fast link, one pipeline stage, no CUDA graphs."""
    gpu = case.gpu
    graphs = case.setting("cuda_graph_impl")
    return gpu is not None and gpu.grace and pp_of(case) == 1 and graphs == (True, "none")


def _offload(case: Case, room: Room | None) -> Iterator[Advice]:
    layers = case.number("num_layers")
    if layers is None or layers < 2:
        return
    each, short = layer_activation_bytes(case), _short_bytes(room)
    wanted = layers - 1 if not each or not short else min(layers - 1, math.ceil(short / each))
    why = f"offloads activations of {wanted} of {layers} layers to host memory, over the CPU's fast link"
    costs = "copies may become exposed (PD204): tune the number of layers; the node's GPUs share host memory"
    then = [
        advise(knob="cpu_offloading_weights", to=False, why="weights are needed in every pass"),
        advise(knob="cpu_offloading_num_layers", to=wanted, why=why),
    ]
    yield from needing(advise(knob=OFFLOAD, to=True, why=why, costs=costs), then=then)


def _selective(case: Case) -> Iterator[Advice]:
    modules = cheap_modules(case)
    if modules:
        why = f"recomputes {', '.join(modules)} instead of storing them, at little cost"
        part = advise(knob=GRANULARITY, to="selective", why=why, costs="a few percent of compute")
        which = advise(knob=MODULES, to=modules, why="their outputs are large and cheap to recompute")
        yield from needing(part, then=[which])


def cheap_modules(case: Case) -> tuple[str, ...]:
    """Modules with outputs that are cheap to recompute, as far as this model is known to have them.
    Megatron-core refuses norms and expert activations under delayed FP8 scaling. PyTorch's own frameworks
    choose no modules."""
    if case.framework == "pytorch":
        return ()
    found = []
    delayed = fp8_on(case) is not False and case.setting("fp8_recipe")[1] in (None, "delayed")
    if not delayed:
        found.append("layernorm")
        if case.is_set_to("moe_grouped_gemm", True) and (case.number("num_moe_experts") or 1) > 1:
            found.append("moe_act")
    if case.is_set_to("multi_latent_attention", True):
        found.append("mla_up_proj")
    return tuple(found)


def _full(case: Case, room: Room | None) -> Iterator[Advice]:
    """The fewest layers that free what the failed request lacked; every layer if that is unknown."""
    stage, each, flight = stage_layers(case), saved_layer_bytes(case), micro_batches_in_flight(case)
    chunks = vpp_of(case) or 1
    short = _short_bytes(room)
    costs = "about 30 % more compute if all layers are recomputed"
    why = "recomputes whole layers in the backward pass"
    block: list[tuple[str, Value]] = [(METHOD, "uniform"), (LAYERS, 1)]
    if (
        stage
        and each
        and flight
        and short
        and (wanted := math.ceil(short / (each * flight * chunks))) < stage
    ):
        block = [(METHOD, "block"), (LAYERS, wanted)]
        why = (
            f"recomputing {wanted} of a stage's {stage} layers frees what the failed request lacked; later "
            "requests may need more"
        )
    then = [
        advise(knob=MODULES, to=None, why="belongs to selective recomputation"),
        *(advise(knob=knob, to=to, why=why) for knob, to in block),
    ]
    yield from needing(advise(knob=GRANULARITY, to="full", why=why, costs=costs), then=then)


def stage_layers(case: Case) -> int | None:
    """Layers of one (virtual) pipeline stage, the unit of recompute_num_layers."""
    layers, pp, vpp = case.number("num_layers"), pp_of(case), vpp_of(case)
    if layers is None:
        layers = None if case.job.facts.model is None else case.job.facts.model.layers
    return None if not layers or not pp or not vpp else max(1, layers // (pp * vpp))


def saved_layer_bytes(case: Case) -> int | None:
    """Memory that recomputing one layer saves, per micro-batch."""
    kept, left = layer_activation_bytes(case), layer_input_bytes(case)
    return None if kept is None or left is None else kept - left


def _short_bytes(room: Room | None) -> int | None:
    """What the first failed allocation lacked."""
    if (first := first_failed(room)) is None:
        return None
    return max(0, first.requested_bytes - first.device_free_bytes) or None


def _smaller_micro_batch(case: Case) -> Iterator[Advice]:
    now = case.number("micro_batch_size")
    if now and now % 2 == 0:
        why = "half the activations per micro-batch, and twice as many micro-batches"
        yield advise(knob="micro_batch_size", to=now // 2, why=why, costs="smaller kernels")


def words(case: Case, room: Room | None) -> str:
    """The remedy in words."""
    large, found = list(remedy_of_failed(room)), list[str]()
    if room is not None and tells_remedy(room):
        found, large = large, found
    if pieces(case, room):
        found.append("Apply the advice from the top, one at a time, until it fits.")
    parts = {} if room is None or room.device.composition is None else room.device.composition.category_bytes
    activations, total = parts.get("activations", 0), sum(parts.values())
    if 2 * activations > total > 0:
        found.append("Activations are most of the peak.")
        if not case.setting(GRANULARITY)[0] or GRANULARITY in case.assumed:
            found.append(_OF_LAYERS if case.framework == "pytorch" else _RECOMPUTE)
        if _fsdp(case) and case.gpu is not None and not case.gpu.grace:
            found.append("FSDP does not shard them: recompute, or shorten the sequence per GPU.")
    if (pp_of(case) or 1) == 1 or case.is_set_to("pipeline_model_parallel_size", 1):
        found.append("More pipeline stages split weights and states further.")
    if case.is_set_to("pad_buckets_for_high_nccl_busbw", True):
        found.append("Padded gradient buckets cost memory, though one guide lists them as a saving.")
    if 2 * activations > total > 0 and case.gpu is not None and case.gpu.grace:
        found.append(
            "On Grace, activations can be offloaded to host memory (cpu_offloading, or by module with "
            "fine_grained_activation_offloading, which works with pipelines and recomputation)."
        )
    return " ".join([*found, *large])


_RECOMPUTE = (
    "Recomputation frees most of them, where it is not on already: cheap modules first, then whole layers "
    "(recompute_granularity selective, then full)."
)

_OF_LAYERS = "Recomputation frees most of them, where it is not on already."


def _fsdp(case: Case) -> bool:
    return any(case.is_set_to(name, True) for name in _FSDP)
