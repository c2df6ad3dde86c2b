"""Rules of recomputation, offloading and the optimizer's formats."""

from __future__ import annotations

from perfdoc.trainer.constraints.rule import Rule

MEMORY: tuple[Rule, ...] = (
    (
        "recompute.recompute_granularity",
        lambda c, s, d: (
            c.recompute.recompute_granularity == "full"
            and (c.recompute.recompute_method is None or c.recompute.recompute_num_layers is None)
        ),
        "full needs recompute_method and recompute_num_layers",
    ),
    (
        "recompute.recompute_granularity",
        lambda c, s, d: (
            c.recompute.recompute_granularity == "selective"
            and (c.recompute.recompute_method is not None or c.recompute.recompute_num_layers is not None)
        ),
        "selective takes recompute_modules, not recompute_method or recompute_num_layers",
    ),
    (
        "recompute.recompute_num_layers",
        lambda c, s, d: (
            (c.recompute.recompute_num_layers or 1) > max(1, c.model.num_layers // (s.pp * s.vpp))
        ),
        "more than the layers of a stage",
    ),
    (
        "recompute.distribute_saved_activations",
        lambda c, s, d: (
            c.recompute.distribute_saved_activations
            and (c.recompute.recompute_granularity != "full" or s.tp == 1 or c.parallel.sequence_parallel)
        ),
        "needs full recompute, TP above 1 and no sequence_parallel",
    ),
    (
        "recompute.cpu_offloading",
        lambda c, s, d: (
            c.recompute.cpu_offloading
            and (
                s.pp > 1
                or c.recompute.recompute_granularity is not None
                or c.kernels.cuda_graph_impl != "none"
                or d == "cpu"
            )
        ),
        "needs CUDA, PP 1, no recompute and no CUDA graphs",
    ),
    (
        "recompute.cpu_offloading_num_layers",
        lambda c, s, d: (
            c.recompute.cpu_offloading_num_layers >= c.model.num_layers and c.recompute.cpu_offloading
        ),
        "must be below num_layers",
    ),
    (
        "optimizer.use_precision_aware_optimizer",
        lambda c, s, d: (
            c.optimizer.use_precision_aware_optimizer
            and (not c.optimizer.use_distributed_optimizer or d == "cpu")
        ),
        "needs use_distributed_optimizer, CUDA and Transformer Engine",
    ),
    (
        "optimizer.use_precision_aware_optimizer",
        lambda c, s, d: (
            not c.optimizer.use_precision_aware_optimizer
            and (
                c.optimizer.exp_avg_dtype,
                c.optimizer.exp_avg_sq_dtype,
                c.optimizer.main_grads_dtype,
                c.optimizer.main_params_dtype,
            )
            != ("fp32",) * 4
        ),
        "the optimizer's dtypes stay fp32 without it",
    ),
    (
        "optimizer.optimizer_cpu_offload",
        lambda c, s, d: (
            c.optimizer.optimizer_cpu_offload
            and (d == "cpu" or not c.optimizer.use_precision_aware_optimizer)
        ),
        "needs CUDA and use_precision_aware_optimizer",
    ),
)
