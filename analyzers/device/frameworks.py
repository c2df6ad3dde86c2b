"""Whose program a capture shows and what it has already, by the names in it: advice is given in its words,
and none that assumes something else.

And what it records that slows the host which it measures: each call or operator takes longer for it.
The names: frameworks.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

from perfdoc.analyzers.device.range_names import rows_named
from perfdoc.kept import table
from perfdoc.patterns import pattern_of
from perfdoc.profiling import vocabulary
from perfdoc.profiling.gpus import gpu_family
from perfdoc.records import dataclass
from perfdoc.results.headline import Framework
from perfdoc.traces import Trace

_OF_OPERATOR = pattern_of(r", (seq|op_id) = \d")
"""In the names of ranges that torch.autograd.profiler.emit_nvtx puts around every operator."""
_MANY_RANGES = 1_000


def slowed_by(trace: Trace) -> list[str]:
    """In words, what costs most first; empty where nothing of the kind is in the capture.

    By how much nothing in a capture tells: steps without the profiler do.
    """
    names = trace.range_names_like(_OF_OPERATOR.search)
    count = len(rows_named(trace, names))
    ranges = [f"an NVTX range for every operator ({count:,} ranges)"] if count >= _MANY_RANGES else []
    return [*ranges, *trace.recorded]


Vendor = Literal["nvidia", "amd", "intel", "other", ""]
_LOOKED_AT = 100_000
"""Names: those that count operators come by the million."""
_LENGTH = 512
"""Characters of a name: template arguments say nothing more."""
_OURS = f"{vocabulary.STEP.partition('.')[0]}."
_GROUPS = ("TENSOR", "PIPELINE", "EXPERT", "CONTEXT", "DATA", "MODEL")
_NAMES = SimpleNamespace(**table(Path(__file__).resolve().with_name("frameworks.yaml")))
_TRAINING: frozenset[str] = frozenset({"trains", "backward", "megatron", "steps", "hidden"})
"""Of what may train: without a kernel's name nothing tells that it does not."""
_OTHER_GPUS = (
    r"MetaX|\bMTT\b|Iluvatar|Biren|Enflame|Ascend|Gaudi|Kunlun|\bMLU\d|"
    r"\bDCU\b|Hygon|^[KZ]100(?:L|_AI)?$|^BW\d{3,4}$"
)
"""The last ones are of Hygon, whose calls are named as AMD's."""
_OPTIMIZER = pattern_of(r"\nOptimizer\.step#(\w{1,64})\.step")


@dataclass(frozen=True, kw_only=True)
class Program:
    """What runs, by the names in a capture; what they do not show is not known to be missing."""

    vendor: Vendor = ""
    """Of the GPUs; empty where nothing tells."""
    marks: frozenset[str] = frozenset()
    optimizers: frozenset[str] = frozenset()
    """Classes whose `step` a range names."""

    @cached_property
    def serves(self) -> bool:
        """Whether an inference engine runs and nothing trains beside it."""
        engines = {"vllm", "sglang", "atom", "tensorrt_llm", "tgi", "tensorrt", "native_engine"}
        return bool(self.marks & engines) and "trains" not in self.marks

    @cached_property
    def is_plain(self) -> bool:
        """Whether it is known to run on GPUs and no name is one of a framework or of a neural network: a
        benchmark of communication, a simulation, a sample."""
        return bool(self.vendor) and not self.marks - {"forward", "multiplies"}

    @property
    def has_no_python(self) -> bool:
        """Whether no tensor of a framework in Python can be meant."""
        return self.is_plain or bool(self.marks & {"tensorrt", "native_engine"})

    @property
    def is_tensorrt(self) -> bool:
        """Whether engines of TensorRT run, each answer of which is a few calls, by code of no framework."""
        return self.serves and "tensorrt" in self.marks and not self.marks & {"pytorch", "tensorrt_llm"}

    @cached_property
    def only_infers(self) -> bool:
        """Whether nothing trains by what is known: an engine, no network, or PyTorch with names of a forward
        pass or of operators, and without one of a backward pass, an optimizer or a step: beside GEMMs and
        ReLU alone a backward pass has no name of its own."""
        forward = {"pytorch", "forward"} <= self.marks and not self.marks & _TRAINING
        return self.serves or self.is_plain or forward

    @property
    def framework(self) -> Framework:
        """megatron: Megatron-LM, megatron-core and what is built on them, the reference trainer included.
        Empty where no name tells."""
        if "megatron" in self.marks:
            return "megatron"
        if self.serves:
            return "vllm" if "vllm" in self.marks else "" if self.has_no_python else "pytorch"
        if self.marks & {"pytorch", "compiled"}:
            return "pytorch"
        return "jax" if "jax" in self.marks else ""


NOTHING_SHOWN = Program()


def program_of(trace: Trace) -> Program:
    """By names of kernels, calls, ranges, operators, Python functions and threads."""
    names = [name[:_LENGTH] for name in trace.unlike_strings[:_LOOKED_AT]]
    text = "\n".join(["", *names, *(thread.name for thread in trace.threads), ""])
    marks: set[str] = {mark for mark, parts in _NAMES.marks.items() if any(part in text for part in parts)}
    if any(map(_is_megatron, names)):
        marks.add("megatron")
    shown, whole = trace.kernels, trace.graph_launches
    called = [thread.name for thread in trace.threads if thread.name]
    # In a program that is known not to be of Python they may be a solver's, or a sample's.
    if "multiplies" in marks and (
        not called or any(map(pattern_of(r"(?i)python|^pt_|^ray::").search, called))
    ):
        marks.add("network")
    if (whole.end_ns - whole.start_ns).sum() > (shown.end_ns - shown.start_ns).sum():
        marks.add("hidden")  # most kernels are in graphs traced whole, so that no name of theirs is there
    return Program(
        vendor=_vendor(trace, text), marks=frozenset(marks), optimizers=frozenset(_OPTIMIZER.findall(text))
    )


def _vendor(trace: Trace, text: str) -> Vendor:
    for gpu in (device.gpu_name or "" for device in trace.devices):
        if (family := gpu_family(gpu)) is not None:
            return family.vendor
        if pattern_of(r"NVIDIA|Tesla|GeForce|Quadro").search(gpu):
            return "nvidia"
        if pattern_of(r"AMD|Instinct|Radeon|\bMI\d{2,3}").search(gpu):
            return "amd"
        if pattern_of(r"Intel|\bArc\b|GPU Max").search(gpu):
            return "intel"
        if pattern_of(_OTHER_GPUS).search(gpu):
            return "other"
    said = _NAMES.vendors.items()
    return next((vendor for vendor, parts in said if any(part in text for part in parts)), "")


_OTHERS_FILES = pattern_of(r"(?i)(transformers|accelerate|deepspeed|peft|vllm|sglang)[/.][\w/.]*megatron")
"""Files of other frameworks that are named for Megatron."""


def _is_megatron(name: str) -> bool:
    if "egatron" in name:
        return _OTHERS_FILES.search(name) is None
    if name.startswith(_OURS) or ("_PARALLEL" in name and any(_of_group(name))):
        return True
    return _FUNCTION.search(name) is not None


_FUNCTION = pattern_of(
    r"_(?:Copy|Reduce|Scatter|Gather|ReduceScatter)(?:To|From)(?:Model|Sequence|Tensor)\w{0,16}ParallelRegion"
    r"|\bLinearWithGradAccumulation|\b_VocabParallelCrossEntropy"
)
"""Autograd functions of megatron-core and of what it was made from."""


def _of_group(name: str) -> Iterator[bool]:
    """Descriptions of megatron-core's process groups."""
    yield from (f"{group}_PARALLEL_GROUP" in name for group in _GROUPS)
    yield from (f"{group}_MODEL_PARALLEL" in name for group in ("TENSOR", "EXPERT"))
