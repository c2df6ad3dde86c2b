"""NCCL's buffers (NVLS multicast above all), CUDA contexts and libraries lie beside what PyTorch counts; when
an allocation fails, they are why less is free than expected."""

from perfdoc.results.figures import gib
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.assumptions import NVIDIA, Assumes
from perfdoc.rules.engine.needs import GPUS, Missing, Need, not_applicable, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.memory_room import Room, rooms, why_unknown


def _sizes(case: Case) -> list[int]:
    """What lay outside of PyTorch as an allocation failed, by device."""
    return [size for room in rooms(case) if (size := _outside_bytes(room)) is not None]


def _no_failure(case: Case) -> Missing | None:
    if _sizes(case):
        return None
    if rooms(case) and not any(r.failed for r in rooms(case)):
        return not_applicable("no allocation failed: memory outside PyTorch is reported only then")
    return skipped(why_unknown(case))


_SMI = "nvidia-smi"
_NVLS = " NCCL_DEBUG=INFO logs whether NVLS is used (its kernels' names do not show it)."
META = Meta(
    title="GPU memory taken outside of PyTorch",
    action="Shrink what is taken outside of PyTorch",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide"),
    topic="memory",
    needs=(
        GPUS,
        Need(
            words="a memory snapshot with an allocation that failed, and the GPU's memory",
            missing=_no_failure,
        ),
    ),
    advice=("mem_nvls_off",),
    assumes=(Assumes(of=NVIDIA, words=_SMI, instead="the vendor's tool"), Assumes(of=NVIDIA, words=_NVLS)),
    for_servers=True,
)

MIN_BYTES = 4 << 30
"""Beside PyTorch's own, when an allocation failed. A context and NCCL without NVLS take one to two GiB."""
_KNOB = "nccl_nvls_enable"


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where an allocation failed while `MIN_BYTES` of the GPU were neither PyTorch's
    nor free."""
    size = max(_sizes(case))
    evidence = [("neither PyTorch's nor free as an allocation failed", gib(size))]
    if size < MIN_BYTES:
        return passes(evidence)
    why = "NCCL makes no multicast buffers; right only where its log shows no communicator that uses NVLS"
    costs = "collectives inside a node that do use NVLS become slower"
    used = case.is_set_to("nccl_ub", True) or case.is_set_to("use_sharp", True)
    nvls = case.gpu is not None and case.gpu.nvls
    return informs(
        reason="much of the GPU is taken by something else than PyTorch",
        evidence=evidence,
        remedy=f"See with {_SMI} whether another process has it.{_NVLS}"
        + (" nccl_ub needs NVLS, and sets NCCL_NVLS_ENABLE=1 itself." if used else ""),
        advice=[advise(knob=_KNOB, to=0, why=why, costs=costs)] if nvls and not used else [],
        verify="nvidia-smi's use less what PyTorch reserves falls; bus bandwidth in the table stays.",
        false_alarm="Another job on the GPU, or libraries with pools of their own.",
    )


def _outside_bytes(room: Room) -> int | None:
    """At the worst failure; None where none is known with the size of the GPU."""
    if room.total_bytes is None:
        return None
    found = [
        room.total_bytes - o.device_free_bytes - o.reserved_bytes
        for o in room.device.out_of_memory
        if o.reserved_bytes is not None
    ]
    return max(found, default=None)
