"""Rules of NeMo 1 that megatron-core does not have.

Sources: NeMo 1.23's megatron_gpt_config.yaml, megatron_base_model.py, megatron_gpt_model.py.
"""

from __future__ import annotations

from perfdoc.knobs.configuration import View
from perfdoc.knobs.constraints.definition import Constraint

FP8, OPTIMIZER = "nemo1_fp8", "nemo1_optimizer"
_SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")


def _not_sharded(v: View) -> bool:
    return v(OPTIMIZER) not in (None, *_SHARDED)


NEMO1: tuple[Constraint, ...] = (
    Constraint(
        name="fp8-needs-format",
        subject=FP8,
        kind="forbidden",
        broken=lambda v: v.on(FP8) and v("nemo1_fp8_e4m3") is False and v("nemo1_fp8_hybrid") is False,
        rule="fp8 needs a format: fp8_e4m3 or fp8_hybrid",
        fix=(("nemo1_fp8_hybrid", True),),
        dialects=("nemo1",),
    ),
    Constraint(
        name="fp8-needs-transformer-engine",
        subject=FP8,
        kind="ineffective",
        broken=lambda v: (
            v.on(FP8) and v("nemo1_transformer_engine") is False and v("nemo1_mcore") is not True
        ),
        rule="fp8 runs in Transformer Engine's layers",
        fix=(("nemo1_transformer_engine", True),),
        dialects=("nemo1",),
    ),
    *(
        Constraint(
            name=f"{name.replace('_', '-')}-needs-sharding",
            subject=name,
            kind="ineffective",
            broken=lambda v, name=name: v.on(name) and _not_sharded(v),  # type: ignore[misc]
            rule=f"{name.removeprefix('nemo1_')} is of the sharded optimizers only: optim.name "
            "distributed_fused_adam or mcore_distributed_optim",
            fix=((OPTIMIZER, "distributed_fused_adam"),),
            dialects=("nemo1",),
        )
        for name in ("nemo1_overlap_grad_sync", "nemo1_overlap_param_sync")
    ),
    Constraint(
        name="lightning-accumulation",
        subject="nemo1_accumulate_grad_batches",
        kind="forbidden",
        broken=lambda v: (
            (v.is_given("micro_batch_size") or v.is_given("global_batch_size"))
            and v.number("nemo1_accumulate_grad_batches") > 1
        ),
        rule="accumulate_grad_batches must be 1: NeMo accumulates by global_batch_size and micro_batch_size",
        fix=(("nemo1_accumulate_grad_batches", 1),),
        dialects=("nemo1",),
    ),
)
