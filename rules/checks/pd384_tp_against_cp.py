"""Both divide the same tensors: tensor parallelism overlaps with GEMMs and moves every activation, context
parallelism overlaps with attention and moves keys and values. Where one is exposed and the other hidden,
ranks are on the wrong side."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.context_parallel import NEEDS, balance
from perfdoc.rules.facts.degrees import CP, TP
from perfdoc.rules.facts.exposed import ceiling_of_transfer

META = Meta(
    title="Tensor and context parallelism out of balance",
    action="Balance tensor against context parallelism",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide", "megatron-core notes"),
    topic="long_sequence",
    time=("exposed_comm.tp",),
    needs=NEEDS,
    advice=("ls_tp_cp_sweep",),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where the exposed transfer of one takes 5 % of the window and
    `context_parallel.TIMES` that of the other, and half of its degree fits on the other side. What the other
    mapping takes has to be measured."""
    found = balance(case)
    evidence = [
        (f"exposed transfer of TP {case.degree(TP)}, mean over ranks", per_cent(found.of_tp)),
        (f"exposed transfer of CP {case.degree(CP)}, mean over ranks", per_cent(found.of_cp)),
    ]
    if not found.advice:
        return passes(evidence, found.why_not)
    to_cp = found.to_context
    return informs(
        reason=f"{'TP' if to_cp else 'CP'} is exposed, {'CP' if to_cp else 'TP'} is not",
        evidence=evidence,
        advice=found.advice,
        remedy="Measure both mappings, and those around them: no trace of one shows how the other runs.",
        gain=ceiling_of_transfer(case, "tp" if to_cp else "cp"),
        time=("exposed_comm.tp" if to_cp else "exposed_comm.cp",),
        verify="Run both for some steps and compare the step times: perfdoc diff BEFORE AFTER.",
        false_alarm="An overlap that is only switched off (PD111, PD120): switch it on first.",
    )
