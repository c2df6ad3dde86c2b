"""Communication beside compute: what excludes what in this trainer."""

from __future__ import annotations

from perfdoc.trainer.constraints.definition import Rule

_BY_GEMM = ("tp_overlap_num_sm", "tp_overlap_cga_size", "tp_overlap_fp8_buf", "tp_overlap_num_splits")

OVERLAP: tuple[Rule, ...] = (
    *(
        (
            f"overlap.{name}",
            lambda c, s, d, name=name: getattr(c.overlap, name) is not None and not c.overlap.tp_comm_overlap,
            "is read with tp_comm_overlap only",
        )
        for name in _BY_GEMM
    ),
    (
        "overlap.tp_comm_overlap_cfg",
        lambda c, s, d: (
            c.overlap.tp_comm_overlap_cfg is not None
            and any(getattr(c.overlap, name) is not None for name in _BY_GEMM)
        ),
        f"a file by GEMM excludes {', '.join(_BY_GEMM)}",
    ),
    (
        "overlap.overlap_param_gather_with_optimizer_step",
        lambda c, s, d: (
            c.overlap.overlap_param_gather_with_optimizer_step
            and (
                c.checkpoint.save is not None
                or (c.checkpoint.load is not None and not c.checkpoint.load_weights_only)
            )
        ),
        "one optimizer per chunk has no checkpoints: needs checkpoint.save=null, and load_weights_only=true "
        "with checkpoint.load",
    ),
    (
        "overlap.overlap_param_gather_with_optimizer_step",
        lambda c, s, d: (
            c.overlap.overlap_param_gather_with_optimizer_step and c.precision.params_dtype == "fp16"
        ),
        "a step that the loss scale skips gathers nothing: needs params_dtype bf16 or fp32",
    ),
)
