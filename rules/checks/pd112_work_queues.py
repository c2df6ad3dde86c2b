"""PD112: CUDA_DEVICE_MAX_CONNECTIONS against what the overlaps of this job need."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling, predicted
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.exposed import MIN_FRAC, exposed_ns
from perfdoc.rules.facts.hidden import QUEUES, only_for_gpus, queues

META = Meta(
    code="PD112",
    title="Hardware work queues against the overlaps",
    why="With one queue kernels start in the order of their launch, so that a collective is not pushed "
    "behind the product that it should run beside. With several, streams run on their own, which FSDP's "
    "gathers and overlapped expert parallelism need. The wrong number undoes an overlap without a word.",
    sources=("seed 000", "seed 001", "seed 003"),
    topic="comm_overlap",
    time=("exposed_comm.tp",),
    needs=("settings", "hardware"),
    advice=("tp_overlap_hopper_conn", "mlm_ts_throughput", "fsdp_with_tp"),
)

_KNOB, _CP = "cuda_device_max_connections", "context_parallel_size"
MANY = 32
"""What Megatron-Bridge sets where several queues are wanted."""
_UNKNOWN = (
    "The capture does not hold CUDA_DEVICE_MAX_CONNECTIONS, but TP collectives begin only as kernels end "
    "that were launched after them: set it to 1 where the job is launched."
)
_FORMER = ("ampere", "ada", "hopper")


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    one: bool
    """One queue, else several."""
    why: str
    dimensions: tuple[str, ...]
    """Whose overlap suffers."""
    certain: bool = False
    """Whether frameworks refuse the other."""


def evaluate(case: Case) -> Verdict:
    """Guides contradict one another here; what holds: several queues for FSDP, overlapped expert parallelism
    and DeepEP; one for tensor or context parallelism up to Hopper; Blackwell needs none. Fires as a problem
    where the overlap that suffers is exposed for 5 % of the window and the replay does not rule out that TP
    collectives queue, or where the setting is refused. Where the setting is not known, only if the replay
    finds TP collectives in a queue."""
    on_cpu = only_for_gpus(case)
    if on_cpu is not None:
        return on_cpu
    wanted = _wanted(case)
    if isinstance(wanted, Verdict):
        return wanted
    known, now = case.setting(_KNOB)
    replayed = predicted(case, QUEUES) if wanted.one else None
    gain = replayed if replayed is not None and replayed.method == "replay" else None
    if not known and not (wanted.one and queues(case)):
        reason = "CUDA_DEVICE_MAX_CONNECTIONS is not known: give the job's environment with --config"
        return Verdict(state="skipped", reason=reason)
    value = "not known" if not known else "not set" if now is None else str(now)
    evidence = [Evidence(label="CUDA_DEVICE_MAX_CONNECTIONS", value=value)]
    if known and (now == 1) is wanted.one:
        return Verdict(state="passes", evidence=evidence)
    share = case.share(lambda r: sum(exposed_ns(d)(r) for d in wanted.dimensions)) or 0.0
    names = " and ".join(d.upper() for d in wanted.dimensions)
    evidence.append(Evidence(label=f"exposed {names} communication, mean over ranks", value=per_cent(share)))
    ruled_out = wanted.one and _none_queues(case)
    if ruled_out:
        evidence.append(Evidence(label="TP collectives that begin behind a later kernel", value="none"))
    exposed = share >= MIN_FRAC and not ruled_out
    if gain is None and exposed:
        most = f"the exposed {names} communication"
        gain = ceiling(case, lambda r: sum(exposed_ns(d)(r) for d in wanted.dimensions), most)
    return Verdict(
        state="fires",
        worst=worst_exposed(case, *wanted.dimensions),
        level="problem" if exposed or wanted.certain else "information",
        reason=wanted.why,
        evidence=evidence,
        advice=[
            advise(
                knob=_KNOB,
                to=1 if wanted.one else MANY,
                why=wanted.why,
                costs=_costs(case, wanted),
                gain=gain,
            )
        ]
        if known
        else [],
        remedy="" if known else _UNKNOWN,
        gain=None if known else gain,
        verify="Run again: collectives start with the product that they are to run beside, not at its end.",
        false_alarm="A variable that the launcher or the framework sets to something else when it starts.",
    )


def _none_queues(case: Case) -> bool:
    """Whether the windows were replayed, and no TP collective was found to stand in a queue; of CP nothing is
    replayed."""
    found = case.prediction(QUEUES)
    others = any(p.gain.method == "replay" for p in case.gains.predictions)
    return found is not None and found.gain.method == "none" and others and case.degree(_CP) == 1


def _costs(case: Case, wanted: _Wanted) -> str:
    """FSDP and experts can be combined with TP and CP, and then want different numbers."""
    beside = (case.degree("tensor_model_parallel_size") or 1) * (case.degree("context_parallel_size") or 1)
    former = case.gpu is not None and case.gpu.architecture in _FORMER
    if wanted.one or beside == 1 or not former:
        return ""
    return "up to Hopper, the overlap of TP and CP wants 1: measure which is worth more"


def _wanted(case: Case) -> _Wanted | Verdict:
    gpu = case.gpu
    if gpu is None:
        return Verdict(state="skipped", reason="which GPUs these are is not known")
    if case.is_set_to("use_megatron_fsdp", True) or case.is_set_to("use_torch_fsdp2", True):
        why = "FSDP's gathers run beside compute only with several queues"
        return _Wanted(one=False, why=why, dimensions=("dp",), certain=True)
    if _experts_overlap(case):
        why = "overlapped expert parallelism (and DeepEP, HybridEP) need several queues"
        return _Wanted(one=False, why=why, dimensions=("ep",))
    tp, cp = case.degree("tensor_model_parallel_size"), case.degree(_CP)
    if tp == 1 and cp == 1:
        reason = "neither tensor nor context parallelism, FSDP nor overlapped experts"
        return Verdict(state="not_applicable", reason=reason)
    if tp is None or cp is None:
        return Verdict(state="skipped", reason="the degrees of tensor and context parallelism are not known")
    if gpu.architecture not in _FORMER:
        why = "on Blackwell nothing needs the order of a single queue, which serialises launches"
        return _Wanted(one=False, why=why, dimensions=("tp", "cp"))
    why = "up to Hopper, TP and CP collectives slip behind the product that they should run beside"
    return _Wanted(one=True, why=why, dimensions=("tp", "cp"))


def _experts_overlap(case: Case) -> bool:
    return (
        case.is_set_to("overlap_moe_expert_parallel_comm", True)
        or case.is_set_to("moe_enable_deepep", True)
        or case.is_set_to("moe_token_dispatcher_type", "flex")
    )
