"""Rules of overlapped communication."""

from __future__ import annotations

from perfdoc.trainer.constraints.rule import Rule

OVERLAP: tuple[Rule, ...] = (
    (
        "overlap.overlap_param_gather",
        lambda c, s, d: (
            c.overlap.overlap_param_gather
            and not (c.optimizer.use_distributed_optimizer and c.overlap.overlap_grad_reduce)
        ),
        "needs use_distributed_optimizer and overlap_grad_reduce",
    ),
    (
        "overlap.align_param_gather",
        lambda c, s, d: c.overlap.align_param_gather and not (c.overlap.overlap_param_gather and s.vpp > 1),
        "needs overlap_param_gather and virtual_pipeline_model_parallel_size",
    ),
    (
        "overlap.bucket_size",
        lambda c, s, d: c.overlap.bucket_size is not None and not c.overlap.overlap_grad_reduce,
        "is read only with overlap_grad_reduce",
    ),
    (
        "overlap.tp_comm_overlap",
        lambda c, s, d: (
            c.overlap.tp_comm_overlap and (s.tp == 1 or not c.parallel.sequence_parallel or d == "cpu")
        ),
        "needs TP above 1, sequence_parallel, CUDA and Transformer Engine",
    ),
    (
        "overlap.defer_embedding_wgrad_compute",
        lambda c, s, d: (
            c.overlap.defer_embedding_wgrad_compute
            and (s.pp == 1 or not c.kernels.gradient_accumulation_fusion)
        ),
        "needs PP above 1 and gradient_accumulation_fusion",
    ),
    (
        "overlap.wgrad_deferral_limit",
        lambda c, s, d: c.overlap.wgrad_deferral_limit > 0 and not c.overlap.defer_embedding_wgrad_compute,
        "needs defer_embedding_wgrad_compute",
    ),
    (
        "overlap.nccl_ub",
        lambda c, s, d: (
            c.overlap.nccl_ub
            and (d == "cpu" or "expandable_segments:True" in (c.environment.pytorch_cuda_alloc_conf or ""))
        ),
        "needs CUDA, and excludes expandable_segments:True in pytorch_cuda_alloc_conf",
    ),
    (
        "overlap.use_sharp",
        lambda c, s, d: c.overlap.use_sharp and d == "cpu",
        "needs CUDA and an InfiniBand fabric with SHARP",
    ),
)
