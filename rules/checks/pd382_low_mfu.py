"""MFU, the model's FLOPs by what the GPUs could do in the time, is what all other findings add up to. Where
it is low, the basics come first: overlaps, sharded optimizer states, enough micro-batches."""

from collections.abc import Iterator

from perfdoc.results.figures import gib, per_cent
from perfdoc.rules.engine.needs import Missing, Need, applies, given, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.bubble import few, wanted
from perfdoc.rules.facts.exposed import MIN_FRAC, exposed_ns
from perfdoc.rules.facts.fusions import FUSIONS
from perfdoc.rules.facts.graphs import MIN_HOST_FRAC, launching_ns
from perfdoc.rules.facts.memory_need import vpp_of
from perfdoc.rules.facts.memory_room import tightest
from perfdoc.rules.facts.work_queues import QUEUES, Wanted
from perfdoc.rules.facts.work_queues import wanted as wanted_queues


def _no_mfu(case: Case) -> Missing | None:
    mfu = case.job.mfu
    if mfu.value is None:
        return skipped(f"MFU is not known: {mfu.reason}")
    if mfu.peak_kind == "measured":
        return skipped("MFU is of a measured peak, which guides' figures are not: --set peak_tflops=…")
    return None


META = Meta(
    title="Low model FLOPs utilization",
    action="Raise the MFU",
    sources=("LLM training guide", "Megatron-LM guide", "megatron-core notes"),
    topic="scale",
    needs=(
        applies("a GPU capture", lambda case: bool(case.ranks) and not case.on_host, "no GPU was captured"),
        Need(words="MFU: steps, the model's shape and a GPU whose peak is known", missing=_no_mfu),
    ),
    advice=(
        "goal_mfu",
        "goal_overlap_and_memory",
        "mlm_totals",
        "mlm_quick_scale",
        "mlm_quick_perf",
        "mlm_ts_throughput",
    ),
)

LOW_MFU = 0.30
"""Upper end of what a guide calls naive (20 to 30 %; well tuned 50 to 65 %); it does not say how that was
measured, so the band sorts and predicts nothing."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, below `LOW_MFU`, and names what is known to be off: basics first; where none is,
    what guides add after them. What to set, and for what gain, is for the rules named to say."""
    mfu = given(case.job.mfu.value)
    evidence = [("MFU", per_cent(mfu))]
    exposed = case.share(lambda r: r.ledger.exposed_comm.total)
    idle = case.share(lambda r: r.ledger.idle.total)
    if exposed is not None and idle is not None:
        value = f"{per_cent(exposed)}, {per_cent(idle)}"
        evidence.append(("exposed communication, idle time, mean over ranks", value))
    room = tightest(case)
    if room is not None and room.free_bytes is not None:
        evidence.append(("memory never reserved, least of any GPU", gib(room.free_bytes)))
    if mfu >= LOW_MFU:
        return passes(evidence)
    off = [f"{knob} ({rule})" for knob, rule in _off(case)]
    words = list(_words(case))
    if off:
        names = ", ".join(off)
        words.insert(0, f"Known to be off: {names}. Each rule says what it would change here.")
    return informs(
        reason=f"MFU is {per_cent(mfu)}; a guide calls 20 to 30 % naive and 50 to 65 % well tuned",
        evidence=evidence,
        remedy=" ".join([*words, "The waterfall of the MFU section shows what takes most; begin there."]),
        verify="Run again: MFU rises as the step time falls.",
        false_alarm="A small model or batch, a short sequence, a peak of another type than the GEMMs', or "
        "frozen layers: then fewer FLOPs are done than are counted, or can be.",
    )


def _off(case: Case) -> Iterator[tuple[str, str]]:
    """Settings known to be off though there is a group for them, and whose rule they are: the basics; where
    these are on, what guides add, for communication that is exposed."""
    many, tp = (case.dp or 1) > 1, (case.degree("tensor_model_parallel_size") or 1) > 1
    basics = [
        (many, "use_distributed_optimizer", "PD312"),
        (many, "overlap_grad_reduce", "PD101"),
        (tp, "sequence_parallel", "PD510"),
    ]
    nvls = case.gpu is not None and case.gpu.nvls
    further = [
        (tp and _is_exposed(case, "tp"), "tp_comm_overlap", "PD111"),
        (many and nvls and _is_exposed(case, "dp"), "nccl_ub", "PD103"),
        *((FUSIONS[knob][1](case), knob, "PD404") for knob in FUSIONS),
    ]
    found = [(knob, rule) for wanted, knob, rule in basics if wanted and case.is_set_to(knob, False)]
    yield from (*found, *_queues(case))
    if found:
        return
    yield from ((knob, rule) for wanted, knob, rule in further if wanted and case.is_set_to(knob, False))
    if (case.share(launching_ns) or 0.0) >= MIN_HOST_FRAC and case.is_set_to("cuda_graph_impl", "none"):
        yield "cuda_graph_impl", "PD201"


def _queues(case: Case) -> Iterator[tuple[str, str]]:
    """The variable of TP overlap, where it is known to be another than the job's overlaps need."""
    wants, (known, now) = wanted_queues(case), case.setting(QUEUES)
    if isinstance(wants, Wanted) and known and (now == 1) is not wants.one:
        yield QUEUES, "PD112"


def _is_exposed(case: Case, dimension: str) -> bool:
    return (case.share(exposed_ns(dimension)) or 0.0) >= MIN_FRAC


def _words(case: Case) -> Iterator[str]:
    pp, count = case.degree("pipeline_model_parallel_size"), case.micro_batches
    vpp = vpp_of(case)
    if pp and pp > 1 and count and vpp and few(pp=pp, vpp=vpp, micro_batches=count):
        chunks = f" of {vpp} chunks" if vpp > 1 else ""
        least = wanted(pp=pp, vpp=vpp)
        yield (
            f"{count} micro-batches on {pp} stages{chunks} leave a large bubble: have {least} or more, "
            "by a larger global batch, fewer replicas or a smaller micro-batch (PD301)."
        )
