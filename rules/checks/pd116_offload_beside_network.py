"""If NCCL reaches the network cards through host-memory buffers, its traffic and the offloaded activations
share one link."""

import re

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.needs import (
    GPU_MODEL,
    GPUS,
    WINDOW,
    Missing,
    Need,
    applies,
    given,
    not_applicable,
    skipped,
)
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.exposed import MIN_FRAC


def _not_offloaded(case: Case) -> Missing | None:
    settings = [case.setting(knob) for knob in _OFFLOADS]
    if any(now is True for _, now in settings):
        return None
    if all(known for known, _ in settings):
        return not_applicable("nothing is offloaded")
    return skipped("whether anything is offloaded is not known")


META = Meta(
    title="Offload copies contending with network traffic on Grace",
    action="Keep offload copies off the network's path",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="network",
    time=("exposed_memcpy",),
    needs=(
        GPUS,
        GPU_MODEL,
        applies(
            "a Grace CPU", lambda case: case.gpu is not None and case.gpu.grace, "the GPUs have no Grace CPU"
        ),
        Need(words="offloading to the host", missing=_not_offloaded),
        WINDOW,
    ),
    advice=("mem_offload_nccl_env",),
)

_LEVEL, _C2C = "nccl_net_gdr_level", "nccl_net_gdr_c2c"
_NEARER = ("LOC", "PIX", "PXB")
"""Distances up to which network cards reach GPU memory directly; Grace is a PHB away."""
_WITH_C2C, _BY_DEFAULT = (2, 26), (2, 27)
"""NCCL from here on reads NCCL_NET_GDR_C2C; does so by default."""
_OFFLOADS = ("cpu_offloading", "fine_grained_activation_offloading", "optimizer_cpu_offload")
_REMEDY = (
    "Let network cards access GPU memory directly, past the Grace CPU: NCCL_NET_GDR_LEVEL=PHB up to NCCL "
    "2.25, NCCL_NET_GDR_C2C=1 with 2.26; the default from 2.27."
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if a Grace system is known to offload, exposed communication takes 5 % of the
    window, and NCCL is not known to use direct access by the network cards, as 2.27 and later do by
    default. The release of NCCL, where a run directory names it, tells which variable does it."""
    share = given(case.share(lambda r: r.ledger.exposed_comm.total))
    evidence = [("exposed communication, mean over ranks", per_cent(share))]
    copies = case.share(lambda r: r.ledger.exposed_memcpy) or 0.0
    evidence.append(("exposed copies, mean over ranks", per_cent(copies)))
    release = _release(case)
    reads_c2c = release is None or release >= _WITH_C2C
    far = case.is_set_to(_LEVEL, "PHB") or case.is_set_to(_LEVEL, "SYS")
    if far or (case.is_set_to(_C2C, 1) and reads_c2c) or share < MIN_FRAC:
        return passes(evidence)
    closed = case.is_set_to(_C2C, 0)
    if release is not None:
        evidence.append(("NCCL", str(case.job.facts.nccl_version)))
        if release >= _BY_DEFAULT and not closed:
            return passes(evidence, "NCCL 2.27 and later give network cards direct access by default")
    advice = _advice(case, release, closed)
    return informs(
        reason="exposed communication while offloading over the same CPU",
        evidence=evidence,
        advice=advice,
        otherwise=_REMEDY,
        verify="Run again: bus bandwidth between nodes rises while copies to the host run.",
        false_alarm="Communication that stays inside the NVLink domain, or NCCL 2.27 and later.",
    )


def _advice(case: Case, release: tuple[int, int] | None, closed: bool) -> list[Advice]:
    """The variable of this release; of an unknown one, what is known to be set otherwise."""
    why = "network cards access GPU memory over C2C (NCCL 2.26; earlier: NCCL_NET_GDR_LEVEL=PHB)"
    direct = advise(knob=_C2C, to=1, why=why)
    farther = "a path through the Grace CPU is farther than what is allowed now; for NCCL up to 2.25"
    level = advise(knob=_LEVEL, to="PHB", why=farther)
    if release is not None:
        return [direct] if release >= _WITH_C2C else [level]
    nearer = case.setting(_LEVEL)[1] in _NEARER
    return [piece for piece, wanted in ((direct, closed), (level, nearer)) if wanted]


def _release(case: Case) -> tuple[int, int] | None:
    """`2.26.2` is (2, 26)."""
    found = re.match(r"(\d{1,3})\.(\d{1,3})\b", case.job.facts.nccl_version or "")
    return None if found is None else (int(found[1]), int(found[2]))
