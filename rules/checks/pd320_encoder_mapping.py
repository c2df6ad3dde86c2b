"""An encoder is small beside its decoder: with the decoder's tensor-parallel degree its GEMMs are slices, and
on the decoder's first stage it makes that stage the slowest."""

from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.needs import Missing, Need, not_applicable, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, informs, passes
from perfdoc.rules.facts.degrees import CP, PP, TP

_STAGES, _TENSOR = "encoder_pipeline_model_parallel_size", "encoder_tensor_model_parallel_size"


def _size(case: Case, knob: str) -> int | None:
    """0 where it is set to none; None where it is not known."""
    known, value = case.setting(knob)
    return 0 if known and value is None else case.number(knob)


def _no_encoder(case: Case) -> Missing | None:
    if not case.setting(_STAGES)[0] and not case.setting(_TENSOR)[0]:
        return skipped("no setting mentions an encoder")
    mapped = _size(case, _STAGES) or _size(case, _TENSOR)
    return None if mapped else not_applicable("no separate encoder mapping")


META = Meta(
    title="Invalid or inherited parallel mapping of the encoder",
    action="Map the encoder by itself",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="parallel_mapping",
    needs=(Need(words="a separate encoder mapping", missing=_no_encoder),),
    advice=("enc_pp", "enc_tp", "enc_gpu_count", "enc_experimental"),
)

_VERIFY = "Run again: own times of the encoder's stage and of the decoder's stages come closer."
_FALSE_ALARM = "Current megatron-core and Megatron-Bridge dropped the encoder's tensor-parallel degree."
_EXPERIMENTAL = "the guides call encoder parallelism experimental: compare the loss too"


def evaluate(case: Case) -> Verdict:
    """Fires as a problem where the encoder's degrees contradict the decoder's or the number of ranks,
    dp x cp x (encoder tp x pp + decoder tp x pp); as information where it has a stage as
    wide as the decoder's. Whether a model without such settings has an encoder, nothing tells."""
    own, width, tp, pp = _size(case, _STAGES), _size(case, _TENSOR), case.degree(TP), case.degree(PP)
    evidence = [
        ("encoder, stages and tensor ranks", f"{_shown(own)} and {_shown(width)}"),
        ("decoder, stages and tensor ranks", f"{_shown(pp)} and {_shown(tp)}"),
    ]
    if wrong := _contradiction(case, own, width, tp, pp):
        return fires(
            reason=wrong,
            evidence=evidence,
            advice=_one_stage(own, width),
            remedy="Give the encoder one stage or none, at most the decoder's tensor ranks, and the job "
            "dp x cp x (encoder tp x pp + decoder tp x pp) GPUs.",
            verify="The job starts.",
            false_alarm=_FALSE_ALARM,
        )
    if own == 1 and tp is not None and tp > 1 and width in (0, tp):
        why = f"larger GEMMs of a small encoder; {tp} is what the decoder needs"
        return informs(
            reason=f"the encoder is split over {tp} tensor ranks as the decoder is",
            evidence=evidence,
            advice=[advise(knob=_TENSOR, to=tp // 2 if tp % 2 == 0 else 1, why=why, costs=_EXPERIMENTAL)],
            remedy="Give the encoder fewer tensor ranks than the decoder.",
            verify=_VERIFY,
            false_alarm=_FALSE_ALARM,
        )
    return passes(evidence)


def _one_stage(own: int | None, width: int | None) -> list[Advice]:
    """Of its own: not several, nor none where its tensor ranks are set, which are read with one only."""
    if own is not None and (own > 1 or (own == 0 and width)):
        why = "an encoder has one stage of its own, or none" if own else "its tensor ranks are read then only"
        return [advise(knob=_STAGES, to=1, why=why, costs=_EXPERIMENTAL)]
    return []


def _contradiction(case: Case, own: int | None, width: int | None, tp: int | None, pp: int | None) -> str:
    if own is not None and own > 1:
        return f"the encoder is given {own} stages; more than one is not supported"
    if width and own == 0:
        return "the encoder's tensor-parallel degree is read only with a stage of its own"
    if width and tp and width > tp:
        return f"the encoder has {width} tensor ranks, more than the decoder's {tp}"
    cp, world = case.degree(CP), case.number("world_size")
    if own and tp and pp and cp and world:
        each = cp * ((width or tp) * own + tp * pp)
        if width is not None and world % each:
            return f"{world} GPUs are not a multiple of cp x (encoder tp x pp + decoder tp x pp) = {each}"
    return ""


def _shown(size: int | None) -> str:
    return "unknown" if size is None else str(size)
