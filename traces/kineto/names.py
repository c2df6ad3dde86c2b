"""Names in a PyTorch trace: categories of events, kernels' short names, and the program's own functions."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Literal

from perfdoc.patterns import pattern_of

KERNELS = ("kernel", "Kernel", "mtia_ccp_events")
_ANY = ("gpu", "gcu", "mlu")
COPIES = ("Memcpy", "Memset", *(f"{gpu}_{what}" for gpu in _ANY for what in ("memcpy", "memset")))
CALLS = (
    *("cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver", "mtia_runtime"),
    *("privateuse1_runtime", "privateuse1_driver", "glow_runtime", "gcu_runtime", "gcu_driver"),
    *("mlu_runtime", "mlu_driver", "musa_runtime", "musa_driver"),
)
_OTHERS = pattern_of(r"[a-z0-9]{2,16}_(?:(runtime|driver)|(?:memcpy|memset))")
OTHERS_CALL = pattern_of(r"[a-z]{2,8}[A-Z][A-Za-z0-9]{2,60}")
"""The form of a call's name behind another vendor's prefix."""
OPERATORS = ("cpu_op", "Operator")
MARKS = ("user_annotation", "cpu_instant_event")
"""Categories of events by what they are."""
WHAT = {
    **dict.fromkeys(KERNELS, "kernel"),
    **dict.fromkeys(COPIES, "copy"),
    **dict.fromkeys(CALLS, "call"),
    **dict.fromkeys(OPERATORS, "operator"),
    **dict.fromkeys(MARKS, "range"),
    "cuda_sync": "synchronisation",
    "python_function": "Python call",
}
"""What an event of a category is, in words."""
SKIPPED = frozenset(
    ("ac2g", "async_cpu_to_gpu", "async", "fwdbwd", "forward_backward", "Trace", "gpu_user_annotation")
    + ("overhead", "external_correlation", "cuda_profiler_range", "xpu_sync", "gcu_sync")
    + ("mlu_user_annotation", "mlu_profiler_range", "mlu_notifier")
    + ("gpu_pm_counter", "mtia_counters", "mtia_insight")
)
"""Written as duration events, known and not read: flow arrows' ends, the profiler's own span, the GPU-side
copies of annotations, other vendors' waits, counters, and profiler overhead."""


def family(category: str | None) -> Literal["call", "copy", ""]:
    """What an unknown category may be: other vendors' builds put their own name before PyTorch's, but so may
    anybody. Rows of it have to show it.

    >>> family("supa_runtime"), family("kernel"), family("supa_memset")
    ('call', '', 'copy')
    """
    if category is None or category in WHAT or not (match := _OTHERS.fullmatch(category)):
        return ""
    return "call" if match[1] else "copy"


ANNOTATION_PREFIXES = ("ProfilerStep#", "enumerate(DataLoader)", "Optimizer.", "## ")
"""Old captures wrote annotations as operators; these names are no operator's."""

# What can nest, what separates, and `->`, whose `>` closes nothing.
_TOKEN = pattern_of(r"->|::|[<>(){}\[\] ]|\boperator\b")
_OPERATOR_SYMBOL = pattern_of(r"\s*(?:\(\)|\[\]|<=>|<<=?|>>=?|<=|>=|->\*?|[<>]|[^\w\s(){}\[\]<>]+)")
_OPENING = {">": "<", ")": "(", "}": "{", "]": "["}


@lru_cache(maxsize=8192)
def short_name(full_name: str) -> str:
    """The bare function name of a demangled kernel name; the name itself where it has no such parts.

    `void at::native::foo<int>(int)` is `foo`, `void (anonymous namespace)::bar(float*)` is `bar`,
    `ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)` is `ncclDevKernel_SendRecv`. Brackets
    inside arguments are followed, so lambdas and function types there do no harm. A name cut off in
    the middle gives what can be told from its head.
    """
    begin = 0  # of the last word of the last component outside all brackets
    end: int | None = None  # where its template or argument list opens
    ended_by, qualified, in_operator = "", False, False
    open_brackets = _Brackets()
    position = 0
    while token := _TOKEN.search(full_name, position):
        text, position = token.group(), token.end()
        if text in _OPENING:
            open_brackets.close(_OPENING[text])
        elif text in "<({[":
            if not open_brackets.stack and end is None and text != "{" and token.start() > begin:
                end, ended_by = token.start(), text
            elif not open_brackets.stack and text == "(":
                ended_by = "("  # a template list and then the arguments
            open_brackets.open(text)
        elif open_brackets.stack or text == "->":
            continue
        elif text == "::":
            begin, end, ended_by, qualified, in_operator = position, None, "", True, False
        elif text == "operator" and end is None:
            in_operator = True
            symbol = _OPERATOR_SYMBOL.match(full_name, position)
            position = symbol.end() if symbol else position
        elif (
            text == " "
            and not in_operator
            and ended_by != "("
            and full_name[position : position + 1] not in "(["
        ):
            # What stood before is the return type; what follows an argument list only qualifies it.
            begin, end, ended_by = position, None, ""
    if end is None and not qualified:
        return full_name
    return full_name[begin:end].strip() or full_name


class _Brackets:
    """The brackets open at a place; counted by kind, so that a hostile name costs linear time."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self._counts = dict.fromkeys("<({[", 0)

    def open(self, bracket: str) -> None:
        self.stack.append(bracket)
        self._counts[bracket] += 1

    def close(self, bracket: str) -> None:
        """Pop to the innermost such bracket; a `>` that closes none on top is a comparison."""
        if self._counts[bracket] == 0 or (bracket == "<" and self.stack[-1] != "<"):
            return
        popped = ""
        while popped != bracket:
            popped = self.stack.pop()
            self._counts[popped] -= 1


_FRAME = pattern_of(r"([^()]{1,400}\.py)\(\d{1,9}\): \S")
"""`train/loop.py(42): train_step`, the path without the folder that it was imported from."""
_NOT_OWN = frozenset({"torch", "torchgen", "functorch", "triton", "numpy", "nvtx"})
"""Packages that stand between a program and the CUDA calls that it makes."""


def is_own_frame(name: str) -> bool:
    """Whether a frame tells where in a program a call was made.

    >>> is_own_frame("train/loop.py(42): step"), is_own_frame("torch/_ops.py(1244): __call__")
    (True, False)
    >>> is_own_frame("<built-in method item of Tensor object at 0x7f>"), is_own_frame("nn.Module: Linear_0")
    (False, False)
    """
    match = _FRAME.match(name)
    if match is None:
        return False
    path = match[1].replace("\\", "/")
    for installed in ("site-packages/", "dist-packages/"):
        path = path.rpartition(installed)[2]
    if pattern_of(r"(^|/)lib/python3\.\d+/").search(path):
        return False
    package = path.split("/")[0].removesuffix(".py")
    return package not in _NOT_OWN and package not in sys.stdlib_module_names


_WAITING_FRAME = pattern_of(
    r"(?:^|/)(?:queue|threading|selectors|multiprocessing/(?:connection|queues)|torch/utils/data/dataloader)\.py"
    r"\(\d{1,9}\): (?:__next__|_next_data|_try_get_data|_get_data|get|wait|_?poll|recv\w{0,8}|select)$"
)


def is_kept_frame(name: str) -> bool:
    """Whether a frame is the program's own, or one in which a thread waits for another one or a process.

    >>> is_kept_frame("queue.py(171): get"), is_kept_frame("lib/python3.12/threading.py(930): run")
    (True, False)
    """
    return is_own_frame(name) or _WAITING_FRAME.search(name[-200:]) is not None
