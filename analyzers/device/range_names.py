"""Names that trainers emit, of ranges and of process groups, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.profiling import vocabulary
from perfdoc.profiling.distributed.collective_name import parse_collective
from perfdoc.profiling.marks import parse_group_marks
from perfdoc.traces import RangeKind, Trace

_GROUPS = (
    # megatron-core's parallel_state (group_desc), most specific first.
    (r"(POSITION_)?EMBEDDING_GROUP|MODEL_PARALLEL_GROUP|TENSOR_AND_DATA_PARALLEL_GROUP.*", "other"),
    (r"TENSOR_AND_CONTEXT_PARALLEL_GROUP|EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "other"),
    (r"(INTRA_|INTER_)?(PARTIAL_)?(EXPERT_)?DATA_PARALLEL_GROUP.*", "dp"),
    (r"INTRA_PARTIAL_.*|INTER_(DISTRIBUTED|PARTIAL)_.*", "dp"),
    # The gradient norm over all ranks of one optimizer instance, model parallel ones included.
    (r"INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "other"),
    (r"TENSOR_MODEL_PARALLEL_GROUP|EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
    (r"(HIERARCHICAL_)?CONTEXT_PARALLEL_GROUP.*|HYBRID_DP_CP_GROUP_\d+", "cp"),
    (r"EXPERT_MODEL_PARALLEL_GROUP|EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "ep"),
    (r"PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
    # PyTorch's DeviceMesh: mesh_<dimension>, with torchtitan's names of dimensions.
    (r"mesh_(dp|fsdp|hsdp|ddp)(_.*)?|mesh_(dp_)?(replicate|shard)(_.*)?|mesh_edp(_.*)?", "dp"),
    (r"mesh_e?tp", "tp"),
    (r"mesh_cp", "cp"),
    (r"mesh_ep", "ep"),
    (r"mesh_pp", "pp"),
)
"""Pattern of a whole process-group description, a trailing _GLOO aside, and its dimension."""

_RANGES = (
    # PyTorch: fully sharded and distributed data parallel.
    (r"^FSDP::|FullyShardedDataParallel|^torch\.distributed\.(fsdp|ddp)\b", "dp"),
    # Transformer Engine: attention with context parallelism, communication of parallel linear layers.
    (r"AttnFuncWithCP", "cp"),
    (r"\.(column|row)_parallel_comm|\.input_cast_comm$|_comm_(fprop|dgrad|wgrad)$", "tp"),
    (r"^nvte_.*userbuffers|^(ub|userbuffers)[_ ]", "tp"),
    # megatron-core's and Megatron-LM's timers and ranges.
    (r"embedding-grads-all-reduce|layernorm-grads-all-reduce|^non-tensor-parallel-grads", "other"),
    (r"^(all-)?grads-(sync|reduce-scatter|all-reduce)|^params-all-gather", "dp"),
    (r"(forward|backward)-(send|recv)|^(send|recv)_(forward|backward)|p2p_communication", "pp"),
    # What people write themselves.
    (r"(?i)\b(all[ _-]?reduce|reduce[ _-]?scatter|sync(hroni[sz]e)?)[ _-]+(grad(ient)?s?)\b", "dp"),
    (r"(?i)\bgrad(ient)?s?[ _-]+(all[ _-]?reduce|reduce[ _-]?scatter|sync(hroni[sz]ation)?)\b", "dp"),
    (r"(?i)(finish|start)_(gradient|grad)_(sync|synchronization|reduce)", "dp"),
    (r"(?i)\bddp[ _-]broadcast\b|\bddp[ _-](comm|sync|all_?reduce)", "dp"),
    (r"(?i)^(tensor[ _-]parallel|tp)[ _-](comm|all|reduce|gather|scatter)", "tp"),
    (r"(?i)^(context[ _-]parallel|cp|ring[ _-]attention)[ _-](comm|ring|exchange|send|recv|kv|all)", "cp"),
    (r"(?i)^(expert[ _-]parallel|ep|moe)[ _-](comm|all[ _-]?to[ _-]?all|a2a|dispatch|combine)", "ep"),
    (r"(?i)^(token_)?(dispatch|combine)[ _-](all[ _-]?to[ _-]?all|a2a|comm|tokens)", "ep"),
    (r"(?i)^(pipeline([ _-]parallel)?|pp)[ _-](comm|send|recv|p2p)", "pp"),
)
"""Pattern searched in a range's name, and the dimension of what is launched in it. Only names that speak
of communication are here: a collective launched in a range called "attention" proves nothing."""

RANGE_HINTS = (
    *("fsdp", "fully", "ddp", "torch.distributed", "attnfunc", "comm", "userbuffers", "ub_", "grad"),
    *("send", "recv", "p2p", "params-all", "ring", "all_to_all", "a2a", "alltoall", "dispatch", "combine"),
    *("tensor", "context", "expert", "pipeline", "moe", "perfdoc.comm"),
    *("tp", "cp", "ep", "pp", "all", "reduce", "gather", "scatter", "exchange"),
)
"""Lower-case words of which every name that _RANGES finds holds at least one."""


@lru_cache(maxsize=65536)
def dimension_of_group(description: str) -> str | None:
    """The dimension that a process-group description names; None where it names none."""
    text = description.removesuffix("_GLOO")
    return next((dim for pattern, dim in _GROUPS if re.fullmatch(pattern, text)), None)


@lru_cache(maxsize=65536)
def dimension_of_range(name: str) -> str | None:
    """The dimension of communication launched in a range of this name; None where the name tells none."""
    ours = parse_collective(name)
    if ours is not None:
        return ours.dimension or dimension_of_group(ours.group)
    text = name[:512]
    return next((dim for pattern, dim in _RANGES if re.search(pattern, text)), None)


STEP_PATTERNS: tuple[tuple[str, str], ...] = (
    ("perfdoc", rf"^{re.escape(vocabulary.STEP)}( \d+)?$"),
    ("Megatron-Bridge", r"^training_step_\d+$"),
    ("PyTorch profiler", r"^ProfilerStep\s?#\d+$"),
    # "Warm-up Step 1" and "Optimizer.step#…" must not match: the whole name is a step or it is none.
    ("common form", r"(?i)^((train|training|global)[ _-]?)?(step|iter|iteration)[ _#:=-]*\d+$"),
    ("common form", r"(?i)^(train|training)[ _-]?(step|iter|iteration)$"),
)
"""(where the form comes from, pattern on the whole name); the first that occurs wins."""


def named_as(word: str) -> re.Pattern[str]:
    """For the whole name of a range: a phase of the step by its word alone, whatever stands around it.

    >>> names = ("## forward ##", "Forward_Pass", "forward:mlp")
    >>> [bool(named_as("forward").fullmatch(name)) for name in names]
    [True, True, False]
    """
    return re.compile(rf"(?i:[\W_]{{0,16}}{word}(?:[ _-](?:pass|step))?[\W_]{{0,16}})")


_BATCH = r"(mini|micro|global)?[ _-]?(data|batch(es)?|samples?)"
_WHOSE = r"(next|new|train(ing)?|val|valid|validation|eval|test)[ _-]"
_ENDS = r"(?![a-z0-9])(?![ _-]?(size|parallel|norm|ptr|type|index|dim|shape|sampler|placement))"
DATA_PATTERN = (
    rf"^{re.escape(vocabulary.DATA)}\b"
    # PyTorch, Lightning, TorchRec, Megatron-LM, DALI, TensorFlow, Ray.
    r"|^enumerate\(DataLoader\)#|^DataLoader"
    r"|\b_?(Base|SingleProcess|MultiProcessing)DataLoaderIter\b|\b_?(next|try_get|get)_data$"
    r"|(?i:\b(train_|val_|test_)?dataloader_next\b|\b(train|val|test)_next$|\b(fetch_next|get)_train_batch\b)"
    r"|(?i:^batch[ _-]generator\b|^get_batch_samples\b|^batch_input\b)"
    r"|(?i:\bDALI\w{0,64}Iterator\b|^\[?DALI\]?.*\b(share_?outputs|outputs|__next__|next)\b)"
    r"|\bIteratorGetNext\b|\biter_(torch_)?batches\b"
    # What people write themselves.
    r"|(?i:^(## ?)?(data|input|batch)[ _-]?(load(er|ing)?|fetch(er|ing)?|wait(ing)?|read(ing)?|io|stall)\b)"
    # TorchRec's `## wait_for_batch ##` waits for a copy that was made ahead.
    rf"|(?i:^((## ?)?(get|fetch(ing)?|load(ing)?|read(ing)?|next)|wait(ing)?([ _-](for|on))?)[ _-]({_WHOSE})*"
    rf"{_BATCH}{_ENDS})"
    r"|(?i:\bnext ?\(\w{0,64}(load|data|iter|batch)\w{0,64}\))"
)
"""Ranges in which the training thread waits for a batch."""

GC_PATTERN = rf"^{re.escape(vocabulary.GC)}\b|(?i:^(python[ _-]?)?gc(\.collect)?$)|(?i:^garbage[ _-]collect)"
"""Ranges of Python's garbage collector."""

LOCK_WAIT_PATTERN = r"(?i)^wait(ing)? for (the )?gil$"
LOCK_HELD_PATTERN = r"(?i)^holding (the )?gil$"
"""Ranges of Nsight's --trace=python-gil."""

_NUMBER = re.compile(r"(?<![^\W_])\d+")
"""A number that is a word of its own: 2 of `step 2`, not that of `p2p`. Which number it is says nothing here,
and emit_nvtx numbers every operator: half a million names have some hundred forms."""

# Words of which a matching name holds at least one, in lower case: names are thinned out by them before any
# pattern is tried.
_STEP_HINTS = ("step", "iter")
_DATA_HINTS = (vocabulary.DATA, "data", "batch", "sample", "dali", "next", "input")
_GC_HINTS = (vocabulary.GC, "gc", "garbage")
_LOCK_HINTS = ("gil",)


@dataclass(frozen=True, kw_only=True)
class KnownRanges:
    """Rows of Trace.ranges whose names mean something; found once for all devices of a trace."""

    steps: Sequence[tuple[str, I64]]
    """(where the form comes from, rows), for every form of STEP_PATTERNS that occurs, in that order."""
    data: I64
    gc: I64
    lock_waits: I64
    """Waits for the interpreter's lock."""
    lock_held: I64
    """Times in which a thread had it."""
    comm: I64
    """Ranges whose name tells the dimension of communication launched in them."""
    comm_dimension: I64
    """Index into DIMENSIONS for each row of `comm`."""
    communicators: Mapping[int, str]
    """Dimension by NCCL communicator id, from group marks inside the capture."""


_FORMS = (
    *((form, _STEP_HINTS) for _, form in STEP_PATTERNS),
    (DATA_PATTERN, _DATA_HINTS),
    (GC_PATTERN, _GC_HINTS),
    (LOCK_WAIT_PATTERN, _LOCK_HINTS),
    (LOCK_HELD_PATTERN, _LOCK_HINTS),
)
"""(pattern, hints) of every form but communication's."""


@lru_cache(maxsize=65536)
def _known(name: str) -> tuple[tuple[int, ...], int]:
    """Which of _FORMS a name has, its numbers being 0, and the index into DIMENSIONS of the communication
    it names (-1: none)."""
    low = name.lower()
    forms = [
        i
        for i, (pattern, hints) in enumerate(_FORMS)
        if any(h in low for h in hints) and re.search(pattern, name)
    ]
    dimension = dimension_of_range(name) if any(h in low for h in RANGE_HINTS) else None
    return tuple(forms), -1 if dimension is None else DIMENSIONS.index(dimension)


def find_known_ranges(trace: Trace, data_pattern: re.Pattern[str] | None = None) -> KnownRanges:
    """Look for every known form of name. data_pattern: what the user says names data loading, beside them."""
    used = trace.range_names.tolist()
    named: list[list[int]] = [[] for _ in _FORMS]
    dimension_of = {}
    for i in used:
        name = trace.strings[i]
        forms, dimension = _known(
            name if name.startswith(vocabulary.COLLECTIVE_PHASES) else _NUMBER.sub("0", name)
        )
        for form in forms:
            named[form].append(i)
        if dimension >= 0:
            dimension_of[i] = dimension
    table = np.full(len(trace.strings), -1, np.int64)
    table[list(dimension_of)] = list(dimension_of.values())
    comm = _rows_named(trace, list(dimension_of))
    comm = comm[trace.ranges.kind[comm] != RangeKind.MARK]
    *steps, data, gc, lock_waits, lock_held = (_rows_named(trace, names) for names in named)
    if data_pattern is not None:
        data = np.union1d(data, ranges_matching(trace, data_pattern.search))
    return KnownRanges(
        steps=[(source, rows) for (source, _), rows in zip(STEP_PATTERNS, steps, strict=True) if len(rows)],
        data=data,
        gc=gc,
        lock_waits=lock_waits,
        lock_held=lock_held,
        comm=comm,
        comm_dimension=table[trace.ranges.name[comm]],
        communicators=_communicators(trace.strings[i] for i in used),
    )


def ranges_matching(trace: Trace, matches: Callable[[str], object]) -> I64:
    """Rows of Trace.ranges whose name a user's test finds."""
    used = trace.range_names
    return _rows_named(trace, [i for i in used.tolist() if matches(trace.strings[i])])


def _communicators(names: Iterable[str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for mark in parse_group_marks(names):
        dimension = dimension_of_group(mark.description)
        if mark.communicator is not None and dimension is not None:
            found[mark.communicator] = dimension
    return found


def _rows_named(trace: Trace, names: Sequence[int]) -> I64:
    if not names:
        return np.empty(0, np.int64)
    wanted = np.zeros(len(trace.strings), bool)
    wanted[np.asarray(names, np.int64)] = True
    return np.flatnonzero(wanted[trace.ranges.name])
