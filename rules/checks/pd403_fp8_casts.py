"""Every tensor is cast before an FP8 GEMM. Finer scaling blocks cost more in the casts and in the GEMMs, and
buy accuracy with it."""

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.assumptions import ENGINE, Assumes
from perfdoc.rules.engine.gain import time_share
from perfdoc.rules.engine.needs import GPUS, WINDOW, applies
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes, skips
from perfdoc.rules.facts.capture import KERNELS
from perfdoc.rules.facts.graphs import of_names, without_kernels
from perfdoc.rules.facts.precision import casts_of_weights, fp8_on

_casts_ns, _apart_ns = of_names(lambda k: k.kernel_class is KernelClass.QUANTISATION)
META = Meta(
    title="Costly casts to few bits",
    action="Make casts to FP8 cheaper",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide", "Megatron-LM guide"),
    topic="low_precision",
    assumes=(Assumes(of=ENGINE, words=" (Transformer Engine)"),),
    needs=(
        GPUS,
        KERNELS,
        WINDOW,
        applies(
            "kernels that cast to 8 bits or below",
            lambda case: bool(case.share(_casts_ns)),
            "no kernel casts to 8 bits or below",
        ),
    ),
    advice=("lp_recipe_block_cost",),
)

MIN_FRAC = 0.05
"""Of the window, mean over ranks: kernels that cast to 8 bits or below, find maxima and lay out scales."""
_FINE = {"mxfp8": "one scale for every 32 values", "blockwise": "one scale for every block"}
_LOAD = (
    "Load them in 16 bits where memory allows: LoRA instead of QLoRA (bitsandbytes: load_in_4bit=False, "
    "load_in_8bit=False). Else a larger batch: each cast then serves more tokens."
)
_REUSE = "reuse_grad_buf_for_mxfp8_param_ag"


def evaluate(case: Case) -> Verdict:
    """Fires where quantisation takes `MIN_FRAC` of the window; as information where nobody says that the job
    multiplies in FP8."""
    share, evidence = time_share(case, "casts to 8 bits and below", _casts_ns)
    if share < MIN_FRAC:
        return passes(evidence)
    if kernel := casts_of_weights(case):
        return fires(
            action="Keep weights in 16 bits, where memory allows",
            reason=f"weights that are kept in few bits cost casts for each product ({kernel})",
            evidence=evidence,
            remedy=_LOAD,
            gain=without_kernels(case, _casts_ns, _apart_ns, "the time of the casts"),
            verify="Run again: quantisation in the table of kernel classes falls.",
            false_alarm="Weights that do not fit in 16 bits: then the casts are the price.",
        )
    if fp8_on(case) is False:
        reason = "the settings say that nothing multiplies in FP8, so these casts serve something else"
        return skips(reason, evidence)
    known, recipe = case.setting("fp8_recipe")
    if known:
        evidence.append(("recipe", str(recipe)))
    return fires(
        level="problem" if fp8_on(case) else "information",
        reason="casts cost time that faster GEMMs must win back",
        evidence=evidence,
        remedy=_remedy(case, recipe if known else None),
        advice=_advice(case, str(recipe)) if known and recipe in _FINE else [],
        gain=without_kernels(case, _casts_ns, _apart_ns, "the time of the casts"),
        verify="Run again: quantisation in the table of kernel classes falls; compare the loss curves.",
        false_alarm="An accuracy that only the finer recipe reaches: then its casts are the price.",
    )


def _advice(case: Case, recipe: str) -> list[Advice]:
    why = f"one scale for a tensor instead of {_FINE[recipe]}: fewer maxima, and faster GEMMs"
    costs = "accuracy: the guides disagree, one recommends finer scales; compare loss curves"
    recipe_ = advise(knob="fp8_recipe", to="tensorwise", why=why, costs=costs)
    if case.is_set_to(_REUSE, True):
        return needing(recipe_, then=[advise(knob=_REUSE, to=False, why="it serves the mxfp8 recipe only")])
    return [recipe_]


def _remedy(case: Case, recipe: object) -> str:
    words = []
    if recipe is None:
        words.append("See which recipe is set: finer scaling blocks cost more casts.")
    if case.is_set_to("fp8_param_gather", False):
        words.append("Weights that stay in FP8 are not cast again for each step (fp8_param_gather, PD507).")
    if case.is_set_to("fp8_dot_product_attention", True):
        words.append("Attention in FP8 casts its inputs too.")
    if recipe == "tensorwise":
        words.append("Delayed scaling needs no pass for the maximum, at a risk for accuracy.")
    return (
        " ".join(words) or "Let casts be fused into the norm or activation before them (Transformer Engine)."
    )
