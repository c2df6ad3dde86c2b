"""Which runs `gpu_check.py` starts, and how many layers of the 8B shape fit."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

GIB = 1 << 30
BYTES_PER_PARAMETER = 18
"""Mixed precision on one device: bf16 weight 2, fp32 gradient 4, fp32 copy 4, AdamW's two moments 8."""
LAYER_PARAMETERS = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
"""Of Llama 3 8B: query and output, key and value of 8 groups, three matrices of the MLP; 218 M."""
ENDS_PARAMETERS = 2 * 128256 * 4096
"""Embedding and output layer."""
ACTIVATION_BYTES_PER_TOKEN = 48 * 4096
"""Of one layer, kept for the backward pass: about 34 hidden sizes in bf16 (Korthikanti et al. 2022, without
the terms in the square of the sequence, which fused attention does not keep) and what SwiGLU adds."""
LOGITS_BYTES_PER_TOKEN = 128256 * 16
"""Output in bf16, in fp32 for the loss, and its gradient."""
USED_FRAC = 0.88
"""Of the device's memory: the rest is the context, the caches and the gaps of the allocator."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What decides which runs are possible."""

    device: str
    """cuda or cpu."""
    gpus: int
    memory_bytes: int
    """Of one GPU; 0 on a CPU."""
    nsys: bool
    """Whether an nsys was found."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One `perfdoc run`."""

    name: str
    config: str
    settings: tuple[str, ...]
    profiler: str = "auto"
    skip: str = ""
    """Why it is not started; "" where it is."""


def fitting_layers(memory_bytes: int) -> tuple[int, int]:
    """(layers of the 8B shape, sequence length in tokens) that fit one device; (0, 0) where none does.

    The sequence is shortened before fewer than two layers are taken. An H200 with 140 GiB: the ends take
    18.9 GB, the logits of 8192 tokens 16.8 GB, a layer 3.9 GB and 1.6 GB of activations: (17, 8192).
    """
    usable = memory_bytes * USED_FRAC
    for tokens in (8192, 4096, 2048):
        free = usable - ENDS_PARAMETERS * BYTES_PER_PARAMETER - tokens * LOGITS_BYTES_PER_TOKEN
        layer = LAYER_PARAMETERS * BYTES_PER_PARAMETER + tokens * ACTIVATION_BYTES_PER_TOKEN
        if free >= 2 * layer:
            return min(32, int(free // layer)), tokens
    return 0, 0


RECOMPUTE = ("recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1")
GRAPHS = (
    "cuda_graph_impl=local",
    "cuda_graph_scope=[full_iteration]",
    "use_te_rng_tracker=true",
    "check_for_nan_in_grad=false",
)
TP2 = ("tensor_model_parallel_size=2", "sequence_parallel=true", "data_parallel_size=1")
VARIANTS: tuple[tuple[str, tuple[str, ...], str, int], ...] = (
    ("recompute", RECOMPUTE, "", 1),
    ("automatic-gc", ("manual_gc=false",), "", 1),
    ("cuda-graphs", GRAPHS, "transformer_engine", 1),
    ("fp8", ("fp8=hybrid",), "transformer_engine", 1),
    ("dp2", ("data_parallel_size=2",), "", 2),
    ("tp2-sp", TP2, "", 2),
)
"""Name, settings on top of the base run, package that it needs, GPUs that it needs."""


def planned_runs(machine: Machine, *, quick: bool, layers: int | None = None) -> list[PlannedRun]:
    """The runs in their order; one that this machine cannot do says why.

    layers: of the 8B shape, where the estimate of what fits is wrong.
    """
    steps = 12 if quick else 24
    common = (f"train_iters={steps}", "lr_warmup_iters=2", "eval_interval=null", "log_interval=1")
    tiny = (*common, "data_parallel_size=1")
    runs = [PlannedRun(name="tiny", config="tiny", settings=tiny)]
    if machine.nsys:  # Then `auto` is nsys; the other profiler is to be seen as well.
        runs.append(PlannedRun(name="tiny-torch", config="tiny", settings=tiny, profiler="torch"))
    base, why = _base(machine, common, layers)
    runs.append(PlannedRun(name="8b", config="llama3_8b", settings=base, skip=why))
    for name, settings, package, gpus in VARIANTS[:2] if quick else VARIANTS:
        skip = why or _missing(machine, package, gpus)
        runs.append(PlannedRun(name=f"8b-{name}", config="llama3_8b", settings=(*base, *settings), skip=skip))
    return runs


def _base(machine: Machine, common: tuple[str, ...], wanted: int | None) -> tuple[tuple[str, ...], str]:
    """Settings of the 8B shape cut to this machine, and why it cannot be run there."""
    alone = ("tensor_model_parallel_size=1", "sequence_parallel=false", "data_parallel_size=1")
    if machine.device == "cpu":  # a sixteenth of the width, to try the script itself
        cut = ("num_layers=2", "hidden_size=256", "ffn_hidden_size=896", "num_attention_heads=8")
        small = ("num_query_groups=2", "seq_length=256", "global_batch_size=4", "params_dtype=fp32")
        return (*common, *alone, *cut, *small), ""
    layers, tokens = fitting_layers(machine.memory_bytes)
    if wanted is not None:
        layers, tokens = wanted, tokens or 2048
    cut = (f"num_layers={layers}", f"seq_length={tokens}", "make_vocab_size_divisible_by=128256")
    why = "" if layers else f"two layers do not fit into {machine.memory_bytes / GIB:.0f} GiB"
    return (*common, *alone, *cut, "global_batch_size=8"), why


def _missing(machine: Machine, package: str, gpus: int) -> str:
    if package and machine.device == "cpu":
        return "needs CUDA"
    if package and importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    if gpus > 1 and machine.gpus < gpus:
        return f"needs {gpus} GPUs, there are {machine.gpus}"
    return ""
