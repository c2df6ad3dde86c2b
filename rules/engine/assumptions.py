"""What the words of a rule's advice assume of the job beside the figures; where it does not hold, the engine
leaves them out.

None of these is proven by silence: a capture may not show that a model is compiled. Only what is known not to
hold silences anything.
"""

import re
from collections.abc import Callable

from perfdoc.analyzers.device.frameworks import Program
from perfdoc.analyzers.kernel_class.rules import KernelClass
from perfdoc.profiling.gpus import gpu_family
from perfdoc.records import dataclass
from perfdoc.rules.engine.case import Case


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """One property that words take for granted."""

    words: str
    """For the rule's page."""
    holds: Callable[[Case], bool | None]
    """None: not known."""


@dataclass(frozen=True, kw_only=True)
class Assumes:
    """A part of a rule's text, exactly as it says it, and what it assumes."""

    of: Assumption
    words: str = ""
    """Empty: all that the rule says; it is silent where this does not hold."""
    instead: str = ""
    """What is said in its place; nothing where it is empty."""


_INDUCTOR = r"triton_(?:poi|red|per|tem|mm|bmm|addmm|for|_0d1d)"
_FEW_FRAC = 0.1
"""Of the time of kernels that compiling fuses, in kernels of a compiler: less is of a few functions, such as
megatron-core's own, and the layers are not compiled."""
_FUSES = frozenset(
    (KernelClass.ELEMENTWISE, KernelClass.COPY, KernelClass.NORM, KernelClass.SOFTMAX, KernelClass.REDUCTION)
)


def _is_eager(case: Case) -> bool | None:
    """False where the capture shows that more than a few functions are compiled."""
    if "compiled" not in case.program.marks:
        return None
    fused = [time for rank in case.ranks for time in rank.kernel_times if time.kernel_class in _FUSES]
    whole = sum(time.total_ns for time in fused)  # none of a compiler: another backend, seen by its ranges
    compiled = sum(time.total_ns for time in fused if re.match(_INDUCTOR, time.short_name))
    return None if 0 < compiled < _FEW_FRAC * whole else False


def _has_flash_attention(case: Case) -> bool | None:
    """FlashAttention and Triton's newer kernels are for Ampere and later, and for AMD's GPUs."""
    families = [gpu_family(rank.device.gpu_name) for rank in case.ranks]
    if case.program.vendor == "intel" or any(f is not None and not f.multiplies("bf16") for f in families):
        return False
    return None


def _has_peers(case: Case) -> bool | None:
    """Whether there is another process to communicate with: a world, several ranks, or a collective."""
    sizes = [capture.world_size or 1 for capture in case.captures]
    if len(case.ranks) > 1 or max(sizes, default=1) > 1 or any(rank.communication for rank in case.ranks):
        return True
    return False if case.ranks and (case.job.facts.world_size or 1) == 1 else None


def _has_attention(case: Case) -> bool | None:
    """Known not to be a transformer: it convolves, and no attention runs."""
    attention = any(rank.kernel_parts.attention_ns for rank in case.ranks)
    return True if attention else False if "convolves" in case.program.marks else None


def _not_if(program: Callable[[Program], bool]) -> Callable[[Case], bool | None]:
    """Known not to hold of such programs."""
    return lambda case: False if program(case.program) else None


NVIDIA = Assumption(
    words="GPUs of NVIDIA",
    holds=lambda case: case.program.vendor == "nvidia" if case.program.vendor else None,
)
EAGER = Assumption(words="a model that is not compiled already", holds=_is_eager)
FLASH = Assumption(words="GPUs with FlashAttention (Ampere and later)", holds=_has_flash_attention)
ENGINE = Assumption(words="GPUs of NVIDIA or AMD", holds=_not_if(lambda p: p.vendor == "intel"))
PEERS = Assumption(words="more than one process", holds=_has_peers)
TRAINING = Assumption(words="training", holds=_not_if(lambda p: p.only_infers))
NO_ENGINE = Assumption(words="no inference engine", holds=_not_if(lambda p: p.serves))
FRAMEWORK = Assumption(words="a program in Python", holds=_not_if(lambda p: p.has_no_python))
PYTORCH = Assumption(
    words="PyTorch",
    holds=_not_if(lambda p: bool(p.marks & {"jax", "tensorflow"}) and "pytorch" not in p.marks),
)
TRANSFORMER = Assumption(words="a transformer", holds=_has_attention)
OUTSIDE = (
    "torch.compile runs already: look for graph breaks (TORCH_LOGS=graph_breaks), and at what stays outside "
    "of the compiled regions."
)
"""What is left to do of a compiled model."""
