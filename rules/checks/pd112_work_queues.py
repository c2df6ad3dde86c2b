"""With one hardware queue kernels start in launch order, so a collective is not delayed behind the GEMM that
it should overlap with. With several, streams are independent, as FSDP's weights all-gathers and overlapped
expert parallelism need. The wrong number silently prevents an overlap."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.assumptions import NVIDIA, Assumes
from perfdoc.rules.engine.gain import ceiling, predicted
from perfdoc.rules.engine.needs import GPU_MODEL, GPUS, Missing, Need, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.exposed import MIN_FRAC, QUEUES, exposed_ns, queues
from perfdoc.rules.facts.work_queues import FORMER, MANY, Wanted, wanted

_KNOB, _CP = "cuda_device_max_connections", "context_parallel_size"
_UNKNOWN = (
    "The capture lacks CUDA_DEVICE_MAX_CONNECTIONS, but TP collectives start only after kernels that were "
    "launched later: set it to 1 when launching the job."
)


def _no_queues(case: Case) -> Missing | None:
    """Applies if an overlap depends on the number; if it is unknown, only if TP collectives are found
    queued."""
    wants = wanted(case)
    if isinstance(wants, Missing):
        return wants
    if case.setting(_KNOB)[0] or (wants.one and queues(case)):
        return None
    if case.configuration.values:
        return skipped("what was given does not say CUDA_DEVICE_MAX_CONNECTIONS, which the environment sets")
    return skipped("CUDA_DEVICE_MAX_CONNECTIONS is not known: pass the job's environment with --config")


META = Meta(
    assumes=(Assumes(of=NVIDIA),),
    title="CUDA_DEVICE_MAX_CONNECTIONS prevents overlap",
    action="Change CUDA_DEVICE_MAX_CONNECTIONS",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide"),
    topic="comm_overlap",
    time=("exposed_comm.tp",),
    needs=(
        GPUS,
        GPU_MODEL,
        Need(words="`cuda_device_max_connections`, and overlaps that depend on it", missing=_no_queues),
    ),
    advice=("tp_overlap_hopper_conn", "mlm_ts_throughput", "fsdp_with_tp"),
)


def evaluate(case: Case) -> Verdict:
    """Guides disagree; this holds: several queues for FSDP, overlapped expert parallelism and DeepEP; one for
    tensor or context parallelism up to Hopper; no limit on Blackwell. Fires as a problem if the communication
    that suffers is exposed for 5 % of the window and the replay does not rule out queued TP collectives, or
    if frameworks refuse the setting. If the setting is unknown, only if the replay finds queued TP
    collectives."""
    wants = wanted(case)
    assert isinstance(wants, Wanted), "needed"
    known, now = case.setting(_KNOB)
    replayed = predicted(case, QUEUES) if wants.one else None
    gain = replayed if replayed is not None and replayed.is_predicted else None
    value = "not known" if not known else "not set" if now is None else str(now)
    evidence = [("CUDA_DEVICE_MAX_CONNECTIONS", value)]
    if known and (now == 1) is wants.one:
        return passes(evidence)
    share = case.share(lambda r: sum(exposed_ns(d)(r) for d in wants.dimensions)) or 0.0
    names = " and ".join(d.upper() for d in wants.dimensions)
    evidence.append((f"exposed {names} communication, mean over ranks", per_cent(share)))
    ruled_out = wants.one and _none_queues(case)
    if ruled_out:
        evidence.append(("TP collectives queued behind a later kernel", "none"))
    exposed = share >= MIN_FRAC and not ruled_out
    if gain is None and exposed:
        most = f"all exposed {names} communication"
        gain = ceiling(case, lambda r: sum(exposed_ns(d)(r) for d in wants.dimensions), most)
    return fires(
        worst=worst_exposed(case, *wants.dimensions),
        level="problem" if exposed or wants.certain else "information",
        reason=wants.why,
        evidence=evidence,
        advice=[
            advise(
                knob=_KNOB, to=1 if wants.one else MANY, why=wants.why, costs=_costs(case, wants), gain=gain
            )
        ],
        remedy="" if known else _UNKNOWN,
        gain=None if known else gain,
        verify="Run again: collectives start with the GEMM that hides them, not at its end.",
        false_alarm="The launcher or the framework overrides the variable at start.",
    )


def _none_queues(case: Case) -> bool:
    """Whether the windows were replayed and no TP collective was found queued; CP is not replayed."""
    found = case.prediction(QUEUES)
    others = any(p.gain.is_predicted for p in case.gains.predictions)
    return found is not None and found.gain.method == "none" and others and case.degree(_CP) == 1


def _costs(case: Case, wants: Wanted) -> str:
    """FSDP and experts can be combined with TP and CP, which need a different number."""
    ranks = (case.degree("tensor_model_parallel_size") or 1) * (case.degree("context_parallel_size") or 1)
    former = case.gpu is not None and case.gpu.architecture in FORMER
    if wants.one or ranks == 1 or not former:
        return ""
    return "up to Hopper, TP and CP overlap needs 1: measure which gains more"
