"""PD115: groups that fit into one NVL72 rack but span two."""

from __future__ import annotations

from collections.abc import Mapping

from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import GPU_MODEL, GPUS, Missing, Need, applies, given, known, skipped
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.degrees import has_experts
from perfdoc.rules.facts.exposed import exposed_ns


def _domain(case: Case) -> int | None:
    gpu = case.gpu
    return case.number("nvlink_domain_size") or (None if gpu is None else gpu.nvlink_domain)


def _placed_otherwise(case: Case) -> Missing | None:
    if not case.is_set_to("use_tp_pp_dp_mapping", True):
        return None
    return skipped(
        "ranks are placed with PP inside DP (use_tp_pp_dp_mapping), which this rule does not model"
    )


META = Meta(
    code="PD115",
    title="Communication groups across NVL72 racks",
    why="A group with one rank in the next rack runs at network speed instead of NVLink speed, and delays "
    "all that wait for it.",
    sources=("seed 000", "seed 001", "seed 002"),
    topic="network",
    needs=(
        GPUS,
        GPU_MODEL,
        applies(
            "GPUs in NVL72 racks", lambda case: _domain(case) == RACK_GPUS, "the GPUs are not in NVL72 racks"
        ),
        Need(words="ranks placed TP innermost, PP outermost", missing=_placed_otherwise),
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
_MAX_RANKS = 1 << 16


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if placing ranks rack after rack (TP innermost, PP outermost) splits a group
    that fits into one rack over two. A rack of 72 holds one and an eighth blocks of TP 4 x DP 16."""
    blocks, world = given(_blocks(case)), given(_world(case))
    evidence = [Evidence(label="ranks", value=f"{world:,}")]
    if world <= RACK_GPUS:
        return Verdict(state="passes", reason="all ranks fit into one rack", evidence=evidence)
    if not any(n > 1 for kind, n in _degrees(case).items() if kind != "dp"):
        reason = "data parallelism alone uses the rack's bandwidth with any placement"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    cut = {kind: n for kind, block in blocks.items() if (n := _cut(block, world, RACK_GPUS))}
    if not cut:
        return Verdict(state="passes", evidence=evidence)
    for kind, n in cut.items():
        label = f"{kind.upper()} blocks of {blocks[kind]} ranks split over two racks"
        evidence.append(Evidence(label=label, value=f"{n:,}"))
        if share := case.share(exposed_ns(kind)):
            label = f"exposed {kind.upper()} communication, mean over ranks"
            evidence.append(Evidence(label=label, value=per_cent(share)))
    return Verdict(
        state="fires",
        level="information",
        reason=f"{' and '.join(kind.upper() for kind in cut)} groups span racks",
        evidence=evidence,
        remedy=_remedy(blocks),
        verify="Run again: these groups have the same bus bandwidth on all ranks in the communication table.",
        false_alarm="A scheduler with another rank placement, or racks other than NVL72 (NVL4, NVL36x2).",
    )


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
    sizes = {
        "tp": of["tp"],
        "cp": of["tp"] * of["cp"],
        "ep": etp * of["ep"],
        "dp": of["tp"] * of["cp"] * of["dp"],
    }
    return {kind: size for kind, size in sizes.items() if of[kind] > 1}


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
