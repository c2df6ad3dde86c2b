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
        "precision.first_last_layers_bf16",
        lambda c, s, d: c.precision.first_last_layers_bf16 and c.precision.fp8 is None,
        "needs fp8 with a recipe other than delayed",
    ),
)
