"""Rules of number formats, CUDA graphs and fused kernels."""

from __future__ import annotations

from perfdoc.trainer.constraints.rule import Rule


def _cuda_only(section: str, name: str) -> Rule:
    """A switch that a CPU cannot turn on."""
    return (
        f"{section}.{name}",
        lambda c, s, d: d == "cpu" and bool(getattr(getattr(c, section), name)),
        "needs CUDA",
    )


KERNELS: tuple[Rule, ...] = (
    (
        "precision.fp8",
        lambda c, s, d: c.precision.fp8 is not None and (d == "cpu" or c.precision.params_dtype == "fp32"),
        "needs CUDA, Transformer Engine and params_dtype bf16 or fp16",
    ),
    (
        "precision.fp8_param_gather",
        lambda c, s, d: (
            c.precision.fp8_param_gather
            and (c.precision.fp8 is None or not c.optimizer.use_distributed_optimizer)
        ),
        "needs fp8 and use_distributed_optimizer",
    ),
    (
        "precision.first_last_layers_bf16",
        lambda c, s, d: (
            c.precision.first_last_layers_bf16
            and (c.precision.fp8 is None or c.precision.fp8_recipe == "delayed")
        ),
        "needs fp8 with a recipe other than delayed",
    ),
    (
        "kernels.transformer_impl",
        lambda c, s, d: c.kernels.transformer_impl == "transformer_engine" and d == "cpu",
        "Transformer Engine does not run without a GPU",
    ),
    (
        "kernels.cuda_graph_impl",
        lambda c, s, d: (
            c.kernels.cuda_graph_impl != "none" and (d == "cpu" or not c.kernels.use_te_rng_tracker)
        ),
        "needs CUDA and use_te_rng_tracker",
    ),
    (
        "kernels.cuda_graph_scope",
        lambda c, s, d: (
            "full_iteration" in c.kernels.cuda_graph_scope
            and (c.kernels.cuda_graph_impl != "local" or c.precision.check_for_nan_in_grad)
        ),
        "full_iteration needs cuda_graph_impl local and check_for_nan_in_grad=false",
    ),
    *(
        _cuda_only("kernels", name)
        for name in (
            "gradient_accumulation_fusion",
            "bias_activation_fusion",
            "bias_dropout_fusion",
            "masked_softmax_fusion",
            "apply_rope_fusion",
            "cross_entropy_loss_fusion",
            "use_te_rng_tracker",
        )
    ),
    *(_cuda_only("moe", name) for name in ("moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion")),
)
