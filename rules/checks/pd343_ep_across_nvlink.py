"""Every token goes to several experts and back in each layer. Between nodes a plain all-to-all sends it once
for each expert, over a link with a ninth of NVLink's bandwidth."""

from perfdoc.analyzers.kernel_class.rules import DEDICATED_TRANSPORTS
from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.rules.engine.advise import Advice, advise, all_or_none, needing
from perfdoc.rules.engine.needs import WINDOW, given
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, passes, skips
from perfdoc.rules.facts.degrees import DEGREES, EP, EXPERTS_SPREAD, NVLINK, degrees_of, nvlink_domain
from perfdoc.rules.facts.exposed import MIN_FRAC, ceiling_of_transfer, exposed_evidence, exposed_ns, seen

META = Meta(
    title="Expert parallelism across NVLink domains",
    action="Keep expert parallelism within an NVLink domain",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide", "megatron-core notes"),
    topic="moe",
    time=("exposed_comm.ep",),
    needs=(EXPERTS_SPREAD, DEGREES, NVLINK, WINDOW),
    advice=("moe_ep_in_nvlink", "moe_deepep", "pm_table_moe", "moe_tldr"),
)

_DISPATCHER, _BACKEND = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"
_OLD, _OVERLAP = "moe_enable_deepep", "overlap_moe_expert_parallel_comm"
_SHARED = "moe_shared_expert_overlap"
HIDDEN_FRAC = 0.01
"""Of the window: an exchange of which less is exposed is hidden, wherever it goes."""


def evaluate(case: Case) -> Verdict:
    """Fires where expert-parallel groups are larger than the NVLink domain and `HIDDEN_FRAC` of the time or
    more is exposed, as far as the exchange was seen; with DeepEP (HybridEP) or the 1F1B overlap on, from
    `exposed.MIN_FRAC` on. Or where the library does not run on these GPUs. A problem from that share on, or
    if the library is the wrong one."""
    now, domain, gpu = given(degrees_of(case)), given(nvlink_domain(case)), given(case.gpu)
    share = given(case.share(exposed_ns("ep")))
    evidence = [
        ("ranks of an expert-parallel group x tensor ranks", f"{now.ep} x {now.etp}"),
        ("GPUs of an NVLink domain", str(domain)),
        exposed_evidence(case, "ep", share),
    ]
    library = "hybridep" if gpu.grace and gpu.architecture == "blackwell" else "deepep"
    if _uses_flex(case) and library == "hybridep" and _backend(case) == "deepep":
        return _wrong_library(case, evidence)
    if now.ep * now.etp <= domain:
        return passes(evidence)
    used = _in_use(case)
    if used and share < MIN_FRAC:
        return passes(evidence, f"{used} is on")
    if share < HIDDEN_FRAC and seen(case, "ep"):
        return passes(evidence, "the exchange is hidden")
    known = case.setting(_DISPATCHER)[0]
    libraries = _libraries_seen(case)
    if not known and libraries:
        return passes(evidence, f"{_DISPATCHER} is not known, and kernels of {libraries} are in the capture")
    if not known and not seen(case, "ep"):
        return skips(f"{_DISPATCHER} is not known, and no exchange was seen")
    return fires(
        level="problem" if share >= MIN_FRAC else "information",
        reason=f"groups of {now.ep * now.etp} ranks span NVLink domains of {domain}"
        + (f", and {used} does not hide the exchange" if used else "")
        + ("" if known or used else ", and no kernel of a library made for it was seen"),
        evidence=evidence,
        advice=_first_possible(case, now, domain, library),
        remedy=_smaller(now, domain),
        gain=ceiling_of_transfer(case, "ep"),
        verify="Run again: exposed EP communication falls. DeepEP and HybridEP have kernels of their own.",
        false_alarm="Another placement of ranks, or racks whose domain is larger or not full.",
    )


def _in_use(case: Case) -> str:
    """What is on against the cost of crossing domains; empty for nothing."""
    flex = "the flex dispatcher" if _uses_flex(case) else ""
    overlap = "the 1F1B overlap" if case.is_set_to(_OVERLAP, True) else ""
    return " with ".join(name for name in (flex, overlap) if name)


def _uses_flex(case: Case) -> bool:
    return case.is_set_to(_DISPATCHER, "flex") or case.is_set_to(_OLD, True)


def _libraries_seen(case: Case) -> str:
    """Whose kernels moved the tokens, where they do nothing else; empty where none were seen."""
    transports = {row.transport for rank in case.ranks for row in rank.communication}
    return " and ".join(sorted(transports & set(DEDICATED_TRANSPORTS)))


def _backend(case: Case) -> str:
    if case.is_set_to(_OLD, True):
        return "deepep"
    known, value = case.setting(_BACKEND)
    return str(value) if known else ""


def _advice(case: Case, library: str) -> list[Advice]:
    name = {"deepep": "DeepEP", "hybridep": "HybridEP"}[library]
    why = f"the dispatcher that {name} serves, which sends a token once to each node"
    costs = "the library has to be installed, and takes SMs of its own; the shared expert's overlap goes"
    first = []
    if case.is_set_to(_SHARED, True):
        first.append(advise(knob=_SHARED, to=False, why="works with the alltoall dispatcher only"))
    library_ = advise(knob=_BACKEND, to=library, why=f"{name} is the one for these GPUs")
    return needing(advise(knob=_DISPATCHER, to="flex", why=why, costs=costs), first, [library_])


def _first_possible(case: Case, now: Degrees, domain: int, library: str) -> list[Advice]:
    """The library; where it is on, or the configuration forbids it, the 1F1B overlap; else groups inside the
    domain."""
    if domain <= 1:
        return []
    hide = "hides the exchange under another micro-batch's compute"
    inside = _inside(now, domain)
    why = f"keeps tokens inside the NVLink domain of {domain}"
    ways = [
        [] if _uses_flex(case) else _advice(case, library),
        [] if case.is_set_to(_OVERLAP, True) else [advise(knob=_OVERLAP, to=True, why=hide)],
        [advise(knob=EP, to=inside, why=why, costs=f"{now.ep // inside} times the experts on a GPU")]
        if inside
        else [],
    ]
    return next((found for way in ways if (found := all_or_none(case, way))), [])


def _inside(now: Degrees, domain: int) -> int:
    """The largest degree whose groups fit in a domain; 0 where none does."""
    return max(
        (d for d in range(1, min(now.ep, 4096) + 1) if now.ep % d == 0 and d * now.etp <= domain), default=0
    )


def _smaller(now: Degrees, domain: int) -> str:
    inside = _inside(now, domain)
    if not inside:
        return "Or keep expert ranks inside the domain: experts without tensor parallelism first (PD340)."
    return (
        f"Or keep expert ranks inside the domain: EP {inside}, which puts {now.ep // inside} times "
        "the experts on a GPU. Across nodes guides advise expert parallelism with DeepEP or HybridEP and the "
        "overlap only."
    )


def _wrong_library(case: Case, evidence: list[Evidence]) -> Verdict:
    advice = [advise(knob=_BACKEND, to="hybridep", why="HybridEP is the one for NVL72 racks")]
    if case.is_set_to(_OLD, True):
        old = advise(knob=_OLD, to=False, why="the old switch excludes HybridEP")
        advice = needing(advice[0], [old])
    return fires(
        reason="DeepEP does not run on these GPUs: Megatron-Bridge falls back to alltoall with no more than "
        "a warning, or refuses",
        evidence=evidence,
        advice=advice,
        otherwise="Take the alltoall dispatcher by name: it is what runs.",
        verify="Run again: the start-up log names the dispatcher, and HybridEP's kernels are in the trace.",
        false_alarm="A build of DeepEP that supports these GPUs.",
    )
