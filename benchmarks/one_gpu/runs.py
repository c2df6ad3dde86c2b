"""What is run on one GPU, in order: most knowledge a minute first."""

from collections.abc import Sequence
from dataclasses import dataclass

STEPS = 18
WINDOW = (13, 2)
"""First profiled step, and how many."""
CLEAN = range(5, 12)
"""Steps without a trace of the profiler, which is prepared before step 12; CUPTI stays loaded afterwards."""
AFTER = range(WINDOW[0] + WINDOW[1] + 1, STEPS + 1)
"""Steps after the window, less the one in which memory is remembered."""
COMMON = (
    *(f"train_iters={STEPS}", "lr_warmup_iters=2", "eval_interval=null", "log_interval=1"),
    "data_parallel_size=1",
)
WIDTH_OF_8B = (
    *("tensor_model_parallel_size=1", "sequence_parallel=false", "num_layers=4", "seq_length=4096"),
    *("global_batch_size=4", "make_vocab_size_divisible_by=128256"),
)
"""34.6 GB of weights and optimizer, 8.4 GB of logits: 4 x 218 M and 1,051 M parameters of 18 bytes, 4,096
tokens of 128,256 logits of 16 bytes."""
ON_A_CPU = (
    *("tensor_model_parallel_size=1", "sequence_parallel=false", "num_layers=2", "hidden_size=64"),
    *("ffn_hidden_size=128", "num_attention_heads=4", "num_query_groups=2", "seq_length=64"),
    *("global_batch_size=4", "params_dtype=fp32", "cuda_device_max_connections=null"),
)
"""The same runs small enough to try them out."""
GRAPHS = ("cuda_graph_impl=local", "check_for_nan_in_grad=false")
FUSIONS = ("bias_activation_fusion=true", "bias_dropout_fusion=true", "cross_entropy_loss_fusion=true")
SMALL = ("params_dtype=bf16", "log_interval=10")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run; `limit_s` is what it may take, and what must be left for it to start."""

    name: str
    limit_s: int
    settings: Sequence[str] = ()
    config: str = "llama3_8b"
    needs_cuda: bool = False
    base: str = ""
    """The run that it is `settings` away from; empty for one that others are."""
    delay_ms: float = 0.0
    """That each sample takes longer to read, as `benchmarks/slow_data` makes it."""
    chain: bool = False
    """Whether by `perfdoc run`, with launcher and analysis; else the trainer alone."""

    def words(self, *, on_cpu: bool) -> list[str]:
        """Overrides; of those of one setting the last counts."""
        shape: Sequence[str] = ()
        if self.config == "llama3_8b":
            shape = ON_A_CPU if on_cpu else WIDTH_OF_8B
        settings = [word for word in self.settings if not (on_cpu and word in SMALL)]
        return [*COMMON, *shape, *settings]


RECOMPUTE = ("recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1")
SELECTIVE = ("recompute_granularity=selective", "recompute_modules=[mlp]")


def changed(name: str, *settings: str, limit_s: int = 45, needs_cuda: bool = False) -> Run:
    """`base` with other settings."""
    return Run(name=name, limit_s=limit_s, settings=settings, needs_cuda=needs_cuda, base="base")


def small(name: str, *settings: str, base: str = "", delay_ms: float = 0.0) -> Run:
    """A model whose steps are bound by launches, or by samples that take `delay_ms` each to read."""
    return Run(
        name=name, limit_s=40, config="tiny", settings=[*SMALL, *settings], base=base, delay_ms=delay_ms
    )


RUNS = (
    Run(name="chain", limit_s=100, config="tiny", chain=True),
    Run(name="base", limit_s=60),
    changed("no-history", "record_memory_history=false"),
    changed("automatic-gc", "manual_gc=false"),
    changed("no-nan-check", "check_for_nan_in_grad=false"),
    changed("recompute", *RECOMPUTE),
    changed("recompute-mlp", *SELECTIVE),
    changed("fused", *FUSIONS, limit_s=90, needs_cuda=True),
    changed("mbs2", "micro_batch_size=2"),
    changed("mbs4", "micro_batch_size=4"),
    changed("graphs", *GRAPHS, limit_s=60, needs_cuda=True),
    changed("graph-of-all", *GRAPHS, "cuda_graph_scope=[full_iteration]", limit_s=60, needs_cuda=True),
    Run(name="probe", limit_s=120),
    changed("again"),
    small("small"),
    small("small-mbs32", "micro_batch_size=32", base="small"),
    small("stalled", delay_ms=5.0),
    small("stalled-workers", "dataloader_num_workers=2", base="stalled", delay_ms=5.0),
)
"""`probe` is the program of that name; `again` is `base`, for the noise between two runs alike."""
