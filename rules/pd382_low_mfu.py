"""PD382: low model FLOPs utilisation, and which basics are off."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.rules.case import Case
from perfdoc.rules.memory_room import gib, tightest
from perfdoc.rules.rule import Advice, Evidence, Meta, Verdict

META = Meta(
    code="PD382",
    title="Low model FLOPs utilisation",
    why="MFU, the model's FLOPs by what the GPUs could do in the time, is what all other findings add up to. "
    "Where it is low, the basics come first: overlaps, sharded optimizer states, enough micro-batches.",
    sources=("seed 002", "seed 003", "seed 004"),
    topic="scale",
    needs=("steps", "model", "hardware"),
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
PER_STAGE = 4
"""Micro-batches for each pipeline stage, at least."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, below `LOW_MFU`. Basics that are known to be off are advised first; where none
    is, what guides add after them."""
    mfu = case.job.mfu
    if not case.ranks or case.on_host:
        return Verdict(state="not_applicable", reason="no GPU was captured")
    if mfu.value is None:
        return Verdict(state="skipped", reason=f"MFU is not known: {mfu.reason}")
    evidence = [Evidence(label="MFU", value=f"{mfu.value:.1%}")]
    exposed = case.share(lambda r: sum(r.ledger.exposed_comm_ns.values()))
    idle = case.share(lambda r: sum(r.ledger.idle_ns.values()))
    if exposed is not None and idle is not None:
        value = f"{exposed:.1%}, {idle:.1%}"
        evidence.append(Evidence(label="exposed communication, idle time, mean over ranks", value=value))
    room = tightest(case)
    if room is not None and room.free_bytes is not None:
        evidence.append(Evidence(label="memory never reserved, least of any GPU", value=gib(room.free_bytes)))
    if mfu.value >= LOW_MFU:
        return Verdict(state="passes", evidence=evidence)
    basics = list(_basics(case))
    words = list(_words(case))
    advice = basics or ([] if words else list(_further(case)))
    return Verdict(
        state="fires",
        level="information",
        reason=f"MFU is {mfu.value:.1%}; a guide calls 20 to 30 % naive and 50 to 65 % well tuned",
        evidence=evidence,
        advice=advice,
        remedy=" ".join([*words, "The waterfall of the MFU section shows what takes most; begin there."]),
        verify="Run again: MFU rises by as much as the step gets shorter.",
        false_alarm="A small model or batch, a short sequence, a peak of another type than the products', or "
        "frozen layers: then fewer FLOPs are done than are counted, or can be.",
    )


def _basics(case: Case) -> Iterator[Advice]:
    """Known to be off, though there is a group for them."""
    many, tp = (case.dp or 1) > 1, case.degree("tensor_model_parallel_size")
    if many and case.is_set_to("use_distributed_optimizer", False):
        why = "divides optimizer states over the replicas, which frees memory for larger micro-batches"
        yield Advice(knob="use_distributed_optimizer", to=True, why=why)
    if many and case.is_set_to("overlap_grad_reduce", False):
        why = "reduces gradients beside the backward pass"
        yield Advice(knob="overlap_grad_reduce", to=True, why=why)
    if (tp or 1) > 1 and case.is_set_to("sequence_parallel", False):
        why = "divides norms, dropouts and their activations over the tensor-parallel group"
        yield Advice(knob="sequence_parallel", to=True, why=why)


def _words(case: Case) -> Iterator[str]:
    pp, count = case.degree("pipeline_model_parallel_size"), case.micro_batches
    if pp is not None and pp > 1 and count is not None and count < PER_STAGE * pp:
        yield (
            f"{count} micro-batches on {pp} stages leave a large bubble: have {PER_STAGE * pp} or more, by a "
            "larger global batch, fewer replicas or a smaller micro-batch (PD301)."
        )


def _further(case: Case) -> Iterator[Advice]:
    """What comes after the basics, where it is known to be off."""
    tp = case.degree("tensor_model_parallel_size")
    if (
        (tp or 1) > 1
        and case.is_set_to("sequence_parallel", True)
        and case.is_set_to("tp_comm_overlap", False)
        and case.configuration.dialect != "verl"
    ):
        why = "hides gathers and scatters of tensor parallelism beside products (PD111)"
        costs = "static shapes, and Transformer Engine's layers"
        yield Advice(knob="tp_comm_overlap", to=True, why=why, costs=costs)
    newer = case.gpu is not None and case.gpu.architecture in ("hopper", "blackwell")
    if (case.dp or 1) > 1 and newer and case.is_set_to("nccl_ub", False):
        why = "lets NCCL reduce over registered buffers with few SMs (PD103)"
        yield Advice(knob="nccl_ub", to=True, why=why, costs="buffers outside of PyTorch's allocator")
