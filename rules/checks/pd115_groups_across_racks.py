"""A group with one rank in the next rack runs at network speed instead of NVLink speed, and delays all that
wait for it."""

from collections.abc import Iterator, Mapping, Sequence

from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import Advice, advise, all_or_none
from perfdoc.rules.engine.needs import GPU_MODEL, GPUS, applies, given, known
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.bubble import bubble_grows
from perfdoc.rules.facts.degrees import PP, TP, degrees_of, divisors, has_experts, heads_of, layers_of
from perfdoc.rules.facts.exposed import exposed_ns
from perfdoc.rules.facts.memory_need import fits, too_large


def _domain(case: Case) -> int | None:
    gpu = case.gpu
    return case.number("nvlink_domain_size") or (None if gpu is None else gpu.nvlink_domain)


META = Meta(
    title="Communication groups across NVL72 racks",
    action="Keep communication groups within an NVL72 rack",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide"),
    topic="network",
    needs=(
        GPUS,
        GPU_MODEL,
        applies(
            "GPUs in NVL72 racks", lambda case: _domain(case) == RACK_GPUS, "the GPUs are not in NVL72 racks"
        ),
        known(
            "ranks placed TP innermost, PP outermost",
            lambda case: not case.is_set_to("use_tp_pp_dp_mapping", True) or None,
            reason="ranks are placed with PP inside DP (use_tp_pp_dp_mapping), which is not modelled here",
        ),
        known(
            "the sizes of the parallel groups",
            lambda case: _blocks(case),
            lambda case: _world(case),
            reason="the sizes of the parallel groups are not known",
        ),
    ),
    advice=("nvl72_confine", "nvl72_64", "nvl72_dp_only"),
)

RACK_GPUS = 72
"""GPUs of one NVLink domain."""
USED_GPUS = 64
"""GPUs of a rack that groups of 2, 4, 8 … divide evenly."""
_MAX_RANKS, _MAX_LAYERS = 1 << 16, 4096


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if placing ranks rack after rack (TP innermost, PP outermost) splits a group
    that fits into one rack over two. A rack of 72 holds one and an eighth blocks of TP 4 x DP 16. Other
    degrees are advised where they are known to fit."""
    blocks, world = given(_blocks(case)), given(_world(case))
    evidence = [("ranks", f"{world:,}")]
    if world <= RACK_GPUS:
        return passes(evidence, "all ranks fit into one rack")
    if not any(n > 1 for kind, n in _degrees(case).items() if kind != "dp"):
        return passes(evidence, "data parallelism or FSDP alone uses the rack's bandwidth with any placement")
    cut = {kind: n for kind, block in blocks.items() if (n := _cut(block, world, RACK_GPUS))}
    if not cut:
        return passes(evidence)
    for kind, n in cut.items():
        label = f"{kind.upper()} blocks of {blocks[kind]} ranks split over two racks"
        evidence.append((label, f"{n:,}"))
        if share := case.share(exposed_ns(kind)):
            label = f"exposed {kind.upper()} communication, mean over ranks"
            evidence.append((label, per_cent(share)))
    exposed = sum(case.share(exposed_ns(kind)) or 0.0 for kind in cut)
    return informs(
        reason=f"{' and '.join(kind.upper() for kind in cut)} groups span racks",
        evidence=evidence,
        advice=_confined(case, sorted(cut), exposed),
        remedy=_remedy(blocks),
        verify="Run again: these groups have the same bus bandwidth on all ranks in the communication table.",
        false_alarm="A scheduler with another rank placement, or racks other than NVL72 (NVL4, NVL36x2).",
    )


def _confined(case: Case, cut: Sequence[str], exposed: float) -> list[Advice]:
    """Other stages, else another tensor-parallel degree too, with which the groups that are cut lie in one
    rack each: the nearest that the layers, the heads, the batch and the memory are known to allow, and whose
    bubble grows by no more than is exposed now."""
    now, layers, heads = degrees_of(case), layers_of(case), heads_of(case)
    if now is None or not layers or not heads or layers > _MAX_LAYERS:
        return []
    widths = [now.tp, *(tp for tp in divisors(RACK_GPUS) if heads % tp == 0 and tp != now.tp)]
    near = sorted(divisors(layers // now.vpp), key=lambda pp: (max(pp, now.pp) / min(pp, now.pp), pp))
    for tp, pp in ((tp, pp) for tp in widths for pp in near):
        then = now.with_model_parallel(tp=tp, pp=pp)
        if then is None or (then.pp == 1) != (now.pp == 1) or layers % (pp * then.vpp):
            continue
        if not _allowed(case, now, then, exposed):
            continue
        sizes = _of_degrees(then)
        if all(RACK_GPUS % sizes[kind] == 0 for kind in cut) and not any(
            _cut(size, then.world, RACK_GPUS) for size in sizes.values()
        ):
            return all_or_none(case, list(_mapping(now, then)))
    return []


def _allowed(case: Case, now: Degrees, then: Degrees, exposed: float) -> bool:
    """Whether a mapping is known to fit: less splitting by an estimate."""
    if then.expert_dp is None or case.micro_batches_over(then.dp) is None or too_large(case, now, then):
        return False
    less = then.tp * then.pp < now.tp * now.pp
    return bubble_grows(case, now, then) <= exposed and not (less and fits(case, now, then) is None)


def _mapping(now: Degrees, then: Degrees) -> Iterator[Advice]:
    why = f"groups then end where racks of {RACK_GPUS} do; data parallelism becomes {then.dp}"
    costs = "more weights on a GPU" if then.tp * then.pp < now.tp * now.pp else ""
    for knob, before, after in ((TP, now.tp, then.tp), (PP, now.pp, then.pp)):
        if before != after:
            yield advise(knob=knob, to=after, why=why, costs=costs)


def _degrees(case: Case) -> Mapping[str, int]:
    """By dimension; unknown ones are left out."""
    knobs = {
        "tp": "tensor_model_parallel_size",
        "cp": "context_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "ep": "expert_model_parallel_size",
    }
    found = {kind: n for kind, knob in knobs.items() if (n := case.degree(knob)) is not None}
    if has_experts(case) is False:
        found["ep"] = 1
    return found if case.dp is None else {**found, "dp": case.dp}


def _world(case: Case) -> int | None:
    of = _degrees(case)
    if not {"tp", "cp", "pp", "dp"} <= of.keys():
        return None
    world = of["tp"] * of["cp"] * of["pp"] * of["dp"]
    return world if world <= _MAX_RANKS else None


def _blocks(case: Case) -> Mapping[str, int] | None:
    """Dimension → consecutive ranks that hold whole groups of it; only groups of more than one rank."""
    of = _degrees(case)
    if not {"tp", "cp", "pp", "dp", "ep"} <= of.keys():
        return None
    known, etp = case.setting("expert_tensor_parallel_size")
    etp = etp if known and isinstance(etp, int) else of["tp"] if of["ep"] > 1 else 1
    return _of_degrees(Degrees(tp=of["tp"], pp=of["pp"], cp=of["cp"], dp=of["dp"], ep=of["ep"], etp=etp))


def _of_degrees(at: Degrees) -> Mapping[str, int]:
    sizes = {
        "tp": (at.tp, at.tp),
        "cp": (at.cp, at.tp * at.cp),
        "ep": (at.ep, at.etp * at.ep),
        "dp": (at.dp, at.tp * at.cp * at.dp),
    }
    return {kind: size for kind, (ranks, size) in sizes.items() if ranks > 1}


def _cut(block: int, world: int, rack: int) -> int:
    """Blocks that fit into one rack but span two; 0 if they do not fit at all."""
    return 0 if block > rack else sum(end % block != 0 for end in range(rack, world, rack))


def _remedy(blocks: Mapping[str, int]) -> str:
    fits = [size for size in blocks.values() if size <= RACK_GPUS]
    if all(USED_GPUS % size == 0 for size in fits):
        return (
            f"Use {USED_GPUS} GPUs per rack (16 of 18 trays), which these groups divide evenly, and leave 8 "
            f"idle; or choose TP x DP to divide {RACK_GPUS}."
        )
    return (
        f"Choose TP, CP and DP so that TP x CP x DP divides {RACK_GPUS}, or {USED_GPUS} with 8 idle GPUs per "
        "rack; otherwise pad groups with idle ranks."
    )
