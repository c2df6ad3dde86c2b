"""Rules of the pipeline layout, as megatron-core 0.16.1 checks it (PipelineParallelLayerLayout)."""

from __future__ import annotations

from perfdoc.knobs.configuration import Undecided, View
from perfdoc.knobs.constraints.definition import Constraint
from perfdoc.knobs.pipeline_layout import LAYOUT, stages_of

FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"


def _layout_does_not_fit(v: View) -> bool:
    written = v(LAYOUT)
    if not isinstance(written, str | tuple):
        return False
    found = stages_of(written)
    if found is None:
        return isinstance(written, str)
    try:
        mtp_layers = 0 if v("mtp_num_layers") is None else v.number("mtp_num_layers")
    except Undecided:
        mtp_layers = "".join(found.stages).count("m")
    return bool(found.problem(num_layers=v.number("num_layers"), pp=v.pp, mtp_layers=mtp_layers))


def _layout_against_vpp(v: View) -> bool:
    written, vpp = v(LAYOUT), v("virtual_pipeline_model_parallel_size")
    found = stages_of(written) if isinstance(written, str | tuple) else None
    return found is not None and vpp is not None and len(found.stages) != v.pp * v.vpp


STAGE_LAYOUT: tuple[Constraint, ...] = (
    Constraint(
        name="layout-excludes-other-splits",
        subject=LAYOUT,
        kind="forbidden",
        broken=lambda v: (
            v(LAYOUT) is not None
            and (v(FIRST) is not None or v(LAST) is not None or v.on(EMBEDDING) or v.on(LOSS))
        ),
        rule="pipeline_model_parallel_layout excludes every other way to split the layers",
    ),
    Constraint(
        name="layout-does-not-fit",
        subject=LAYOUT,
        kind="forbidden",
        broken=_layout_does_not_fit,
        rule="pipeline_model_parallel_layout must begin with E and end with L, hold a t for each of "
        "num_layers layers, and a multiple of PP stages",
    ),
    Constraint(
        name="layout-against-vpp",
        subject=LAYOUT,
        kind="forbidden",
        broken=_layout_against_vpp,
        rule="the stages of pipeline_model_parallel_layout must be PP x VPP",
    ),
)
