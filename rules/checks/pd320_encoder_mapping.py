"""PD320: the parallel mapping of a model's encoder."""

from __future__ import annotations

from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.degrees import CP, PP, TP

META = Meta(
    code="PD320",
    title="Encoder mapped like the decoder, or impossibly",
    why="An encoder is small beside its decoder: with the decoder's tensor-parallel degree its products are "
    "slices, and on the decoder's first stage it makes that stage the slowest.",
    sources=("seed 000", "seed 001"),
    topic="parallel_mapping",
    needs=("settings",),
    advice=("enc_pp", "enc_tp", "enc_gpu_count", "enc_experimental"),
)

_STAGES, _TENSOR = "encoder_pipeline_model_parallel_size", "encoder_tensor_model_parallel_size"
_VERIFY = "Run again: own times of the encoder's stage and of the decoder's stages come closer."
_FALSE_ALARM = "Current megatron-core and Megatron-Bridge dropped the encoder's tensor-parallel degree."
_EXPERIMENTAL = "the guides call encoder parallelism experimental: compare the loss too"


def evaluate(case: Case) -> Verdict:
    """Fires as a problem where the encoder's degrees contradict the decoder's or the number of ranks,
    dp x cp x (encoder tp x pp + decoder tp x pp); as information where it has a stage as
    wide as the decoder's. Whether a model without such settings has an encoder, nothing tells."""
    (known, stages), (also_known, tensor) = case.setting(_STAGES), case.setting(_TENSOR)
    if not known and not also_known:
        return Verdict(state="skipped", reason="no setting tells of an encoder")
    own, width = _size(stages) if known else None, _size(tensor) if also_known else None
    tp, pp = case.degree(TP), case.degree(PP)
    if not own and not width:
        return Verdict(state="not_applicable", reason="no encoder with a mapping of its own")
    evidence = [
        Evidence(label="encoder, stages and tensor ranks", value=f"{_shown(own)} and {_shown(width)}"),
        Evidence(label="decoder, stages and tensor ranks", value=f"{_shown(pp)} and {_shown(tp)}"),
    ]
    if wrong := _contradiction(case, own, width, tp, pp):
        return Verdict(
            state="fires",
            reason=wrong,
            evidence=evidence,
            remedy="Give the encoder one stage or none, at most the decoder's tensor ranks, and the job "
            "dp x cp x (encoder tp x pp + decoder tp x pp) GPUs.",
            verify="The job starts.",
            false_alarm=_FALSE_ALARM,
        )
    if own == 1 and also_known and tp is not None and tp > 1 and width in (0, tp):
        why = f"larger products of a small encoder; {tp} is what the decoder needs"
        return Verdict(
            state="fires",
            level="information",
            reason=f"the encoder is split over {tp} tensor ranks as the decoder is",
            evidence=evidence,
            advice=[advise(knob=_TENSOR, to=tp // 2 if tp % 2 == 0 else 1, why=why, costs=_EXPERIMENTAL)],
            verify=_VERIFY,
            false_alarm=_FALSE_ALARM,
        )
    return Verdict(state="passes", evidence=evidence)


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
            return f"{world} GPUs are no multiple of cp x (encoder tp x pp + decoder tp x pp) = {each}"
    return ""


def _size(value: object) -> int | None:
    return 0 if value is None else value if isinstance(value, int) and not isinstance(value, bool) else None


def _shown(size: int | None) -> str:
    return "unknown" if size is None else str(size)
