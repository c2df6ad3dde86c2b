"""The loop, the data split, checkpoints and number formats."""

from __future__ import annotations

from perfdoc.trainer.constraints.definition import Rule

TRAINING: tuple[Rule, ...] = (
    (
        "optimizer.min_lr",
        lambda c, s, d: c.optimizer.min_lr > c.optimizer.lr,
        "above lr",
    ),
    (
        "optimizer.lr_warmup_iters",
        lambda c, s, d: c.optimizer.lr_warmup_iters >= (c.optimizer.lr_decay_iters or c.training.train_iters),
        "not below lr_decay_iters (where that is null, train_iters): a short run wants a smaller one",
    ),
    (
        "data.split",
        lambda c, s, d: (
            c.training.eval_interval is not None
            and (len(c.data.split.split(",")) < 2 or float(c.data.split.split(",")[1]) == 0)
        ),
        "gives validation nothing although eval_interval is set; set eval_interval=null",
    ),
    (
        "data.split",
        lambda c, s, d: float(c.data.split.split(",")[0]) == 0,
        "gives training nothing",
    ),
    (
        "checkpoint.save_interval",
        lambda c, s, d: c.checkpoint.save_interval is not None and c.checkpoint.save is None,
        "needs checkpoint.save",
    ),
    (
        "checkpoint.load_step",
        lambda c, s, d: c.checkpoint.load_step is not None and c.checkpoint.load is None,
        "needs checkpoint.load",
    ),
    (
        "training.manual_gc_interval_val",
        lambda c, s, d: c.training.manual_gc_interval_val > 0 and not c.training.manual_gc,
        "is read with manual_gc only",
    ),
    (
        "profiling.use_pytorch_profiler",
        lambda c, s, d: c.profiling.use_pytorch_profiler and c.profiling.use_nsys_profiler,
        "one profiler at a time: use_nsys_profiler or use_pytorch_profiler",
    ),
    (
        "profiling.profile_ranks",
        lambda c, s, d: max(c.profiling.profile_ranks or (0,)) >= s.world_size,
        "names a rank that the run does not have",
    ),
    (
        "precision.first_last_layers_bf16",
        lambda c, s, d: c.precision.first_last_layers_bf16 and c.precision.fp8 is None,
        "needs fp8 with a recipe other than delayed",
    ),
)
