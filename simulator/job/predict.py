"""What other settings would gain by the job's model, with a band."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfdoc.results.replay import Gain
from perfdoc.simulator.job.building import build_model
from perfdoc.simulator.job.model import JobModel
from perfdoc.simulator.job.rank import RankWork
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.job.work import Work
from perfdoc.simulator.replay.unedited import ERROR_MAX_FRAC
from perfdoc.traces.known_models import ModelShape

_MS = 1e6
_SCHEDULE_FRAC = 0.10
"""Of what another schedule changes: passes differ between micro-batches."""
_COMPOSED_FRAC = 0.10
"""More, where stages were composed."""
_BATCH_FRAC = 0.4
"""Of what another size of micro-batch changes: that kernels are in proportion to it is taken for granted."""
_LAYOUT_FRAC = 0.5
"""Of what other degrees of parallelism change: likewise, and the network as it was seen."""
_RECOMPUTE_FRAC = 0.25
"""Of what recomputation changes: that a recomputed forward takes what a forward takes."""
_NOISE_MIN_FRAC = 0.002
_BEHIND_FRAC = 0.5
"""Of what the captured ranks waited for a replica that was not captured: where that is slow is unknown."""
_EXPLAINED = (0.67, 1.5)
"""An output layer over what its FLOPs say; outside of it the last stage may as well be slow all over."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """The job as it most likely is, and as it may be as well."""

    model: JobModel
    others: tuple[JobModel, ...]

    @property
    def withheld(self) -> str:
        """Why nothing is predicted; empty where something is."""
        error = self.model.error_frac
        return f"the model's error is {error:+.1%}" if abs(error) > ERROR_MAX_FRAC else ""

    def gain(self, new: JobSettings) -> Gain:
        """What these settings save per step. ValueError, one line, where they cannot be modelled.

        Band: what each kind of change may be off by (independent, so they add as squares), the same from the
        other models, and the model's error or 0.2 % of the step, whichever is more.
        """
        model = self.model
        parts = list(_parts(model, new))
        half = math.hypot(*(frac * ns for frac, ns in parts)) if parts else 0.0
        noise = max(abs(model.error_frac), _NOISE_MIN_FRAC) * model.measured_ns
        noise += _BEHIND_FRAC * model.behind_ns
        mid = model.measured_ns - model.step_ns(new)
        gains = [mid, *(m.measured_ns - m.step_ns(new) for m in self.others)]
        return Gain(
            low_ms=round((min(gains) - half - noise) / _MS, 3),
            mid_ms=round(mid / _MS, 3),
            high_ms=round((max(gains) + half + noise) / _MS, 3),
            method="model",
            assumptions=list(_assumptions(model, new)),
        )


def build_models(
    ranks: Sequence[RankWork], settings: JobSettings, shape: ModelShape | None, *, domain: int | None = None
) -> Models:
    """The model, and those with what it leaves open decided otherwise. ValueError, one line. domain: see
    build_model."""
    model = build_model(ranks, settings, shape, domain=domain)
    others = []
    if model.output_inferred is not None and shape is not None:
        others.append(build_model(ranks, settings, shape, domain=domain, output=1.0))
    if model.output_inferred is not None and not _EXPLAINED[0] < model.output_inferred < _EXPLAINED[1]:
        others.append(_slow_all_over(model))
    if model.overhead_ns:
        others.append(replace(model, overhead_ns=0.0))
    if settings.pp > 1 and not settings.messages_overlap:
        others.append(replace(model, message_ns=2 * model.message_ns))
    return Models(model=model, others=tuple(others))


def _slow_all_over(model: JobModel) -> JobModel:
    """What the waits show of the last stage, in its layers and not behind them."""
    last = model.stages[-1]
    each = 1 / max(last.layers, 1)
    spread = replace(
        last,
        forward=last.forward + last.forward_ends * each,
        backward=last.backward + last.backward_ends * each,
        forward_ends=Work(),
        backward_ends=Work(),
    )
    return replace(model, stages=(*model.stages[:-1], spread))


def _parts(model: JobModel, new: JobSettings) -> Iterator[tuple[float, float]]:
    """(share that it may be off by, ns that it changes) of each kind of change, one made after the other."""
    base = model.settings
    composed = any(s.origin == "composed" for s in model.stages)
    schedule = _SCHEDULE_FRAC + (_COMPOSED_FRAC if composed else 0.0)
    layout = replace(
        base,
        tp=new.tp,
        cp=new.cp,
        ep=new.ep,
        dp=new.dp,
        pp=new.pp,
        vpp=base.vpp if new.pp == base.pp else new.vpp,
        layers=base.layers if new.pp == base.pp else new.layers,
        micro_batches=new.micro_batches if new.pp != base.pp or new.dp != base.dp else base.micro_batches,
        messages_overlap=base.messages_overlap if new.pp == base.pp else new.messages_overlap,
    )
    batch = replace(layout, mbs=new.mbs, micro_batches=new.micro_batches)
    recomputed = replace(batch, recompute=new.recompute)
    at, unsure = model.measured_ns, 0.0
    for frac, settings in (
        *((_LAYOUT_FRAC, layout), (_BATCH_FRAC, batch)),
        *((_RECOMPUTE_FRAC, recomputed), (schedule, new)),
    ):
        try:
            then = model.step_ns(settings)
        except ValueError:  # of the settings between, which nobody asks for: the next change has both
            unsure = max(unsure, frac)
            continue
        if then != at:
            yield max(frac, unsure), abs(then - at)
        at, unsure = then, 0.0


def _assumptions(model: JobModel, new: JobSettings) -> Iterator[str]:
    base = model.settings
    composed = [i for i, s in enumerate(model.stages) if s.origin == "composed"]
    if composed:
        some = "stage" if len(composed) == 1 else "stages"
        yield f"{some} {', '.join(map(str, composed))} of {base.pp} not captured: composed from the others"
        if model.shape is None and all(base.layers):
            yield f"{base.layers[composed[0]]} layers on each of them, as on those that were captured"
    if new.vpp > 1 and new.vpp != base.vpp:
        yield "model chunks share a stage's layers evenly; embedding and output layer stay at the ends"
        if new.messages_overlap:
            yield "send/recv overlaps with compute (overlap_p2p_comm)"
    if new.mbs != base.mbs:
        yield "kernel time beyond 2 µs each is proportional to the micro-batch"
    if new.recompute != base.recompute:
        yield "a recomputed forward of a layer takes what its forward takes"
    if (new.tp, new.cp, new.dp, new.pp) != (base.tp, base.cp, base.dp, base.pp):
        yield "kernels keep their efficiency, links their bandwidth"
