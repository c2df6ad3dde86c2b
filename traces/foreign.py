"""What is no trace that perfdoc reads, told by its content: what it is, and how to get one that is.

Public reports attach archives, web pages and pointers in place of traces, and other profilers write SQLite
and JSON too. Whoever gives such a file learns what it is, and not that it is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import AnyStr

from perfdoc.patterns import pattern_of

HEAD_BYTES = 512
"""Of a file that are looked at: a tar archive names itself at byte 257."""

_LOOKED_AT = 64
"""Files of a folder."""

_TORCH = "Capture with torch.profiler.profile and export_chrome_trace."
_NSYS = "Capture with nsys profile --trace=cuda,nvtx, or with torch.profiler."
_RUNTIME = "Capture its process with nsys profile --trace=cuda,nvtx."
_GPUS = "perfdoc reads torch.profiler's traces of NVIDIA, AMD and Intel GPUs."
_UNPACK = "Unpack it, and give the trace that it holds."
_ANY = "Give the trace itself: a report of nsys or its export to SQLite, or what export_chrome_trace wrote."
_SQLITE = "Export the report itself: nsys export --type sqlite REPORT.nsys-rep"

_MAGIC = (
    (rb"PK\x03\x04", "is a zip archive.", _UNPACK),
    (rb".{257}ustar", "is a tar archive.", _UNPACK),
    (
        rb"BZh[1-9]1AY|\xfd7zXZ\0|\x28\xb5\x2f\xfd|\x04\x22\x4d\x18|7z\xbc\xaf|Rar!",
        "is compressed, not with gzip.",
        _UNPACK,
    ),
    (rb"version https://git-lfs", "is a pointer of Git LFS, and not the file.", "Fetch it: git lfs pull"),
    (rb"(?:\s*<\?xml[^>]{0,200}>)?\s*<(?:!doctype )?svg", "is a picture, and no trace.", _ANY),
    (rb"\s*<(?:!doctype|html|\?xml)", "is a web page.", "Download the file itself (its raw form)."),
    (rb"\xff\xfe|\xfe\xff", "is UTF-16 text.", "Write it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE"),
    (rb"[\[{]\0", "is UTF-16 text.", "Write it as UTF-8: iconv -f UTF-16LE -t UTF-8 FILE"),
    (rb"\0[\[{]", "is UTF-16 text.", "Write it as UTF-8: iconv -f UTF-16BE -t UTF-8 FILE"),
    (rb"\x1f\x8b", "is a gzip file.", _UNPACK),
    (rb"SQLite format 3\0", "is a SQLite file.", "Unpack it with gunzip, and give that."),
    (rb"(?:\x89HDF|ARROW1|\xff{4}[\x08-\xf8])", "is an export of a form that is not read.", _SQLITE),
    (
        rb"\x80[\x02-\x05]",
        "is a Python pickle, and no trace.",
        "A memory snapshot of PyTorch is read, with a trace or alone, if its name ends in .pickle.",
    ),
    (
        rb"\s*(?:Generating SQLite file|NOTICE: Existing SQLite|Processing \[|\*\* [\w /()-]+:\s*\n)",
        "is a table of figures.",
        _SQLITE,
    ),
    (
        rb'==PROF== |(?:==[^\n]*\n)*"ID","Process ID"',
        "is of Nsight Compute, which looks at single kernels.",
        _NSYS,
    ),
    (rb"==\d+== ", "is of nvprof, which perfdoc does not read.", _NSYS),
    (rb".{9,24}brain\.Event:", "is of TensorBoard, and no trace.", _ANY),
    (rb"-{5,}[ -]*\n", "is a table of figures, and no trace.", _TORCH),
    (rb"[^\n]{0,200}NCCL (?:INFO|WARN) ", "is a log of NCCL, and no trace.", _TORCH),
    (rb"\s*\[\s*\[", "is a list of lists, as PyTorch writes a memory timeline, and no trace.", _TORCH),
    (rb'"?[\w %()/-]+ \((?:%|ns)\)"?,', "is a table of figures.", _SQLITE),
    (rb'"?[\w %()/-]+"?(?:,"?[\w %()/.[\]-]+"?){2,}\r?\n', "is a table of figures.", _ANY),
)
_SUFFIXES = {
    ".nsys-rep": ("is a report of nsys.", "Unpack it with gunzip, and give that."),
    ".qdstrm": ("is a raw stream.", "Import it with the nsys that wrote it, which makes a .nsys-rep."),
    ".ncu-rep": ("is a report of Nsight Compute, which looks at single kernels.", _NSYS),
    ".pb": ("is a profile of TensorFlow or JAX (XPlane).", _NSYS),
    ".pftrace": ("is a Perfetto trace, as rocprofv3 and rocprof-sys write.", _TORCH),
    ".perfetto-trace": ("is a Perfetto trace, as rocprofv3 and rocprof-sys write.", _TORCH),
    ".proto": ("is a Perfetto trace, as rocprofv3 and rocprof-sys write.", _TORCH),
}


def what_is(head: bytes, suffix: str) -> tuple[str, str] | None:
    """What a file is that begins so, and the remedy; None where it is not known."""
    told = _told(_MAGIC, lambda form: pattern_of(b"(?is)" + form).match(head))
    return told or _SUFFIXES.get(suffix)


def packed_in(folder: Path) -> tuple[str, str] | None:
    """Which archive or report of another tool a folder holds, and the remedy; None where there is none."""
    for file in sorted(folder.iterdir())[:_LOOKED_AT]:
        with suppress(OSError):
            head = b""
            judged = file.name.endswith((".json.gz", *_SUFFIXES))  # a trace would have been taken for one
            if not judged and file.is_file():
                with file.open("rb") as opened:
                    head = opened.read(HEAD_BYTES)
            told = what_is(head, file.suffix)
            if told is not None and (told[1] == _UNPACK or file.suffix in _SUFFIXES):
                return f"{file.name} in it {told[0]}", told[1]
    return None


def _told(
    table: Sequence[tuple[AnyStr, str, str]], shows: Callable[[AnyStr], object]
) -> tuple[str, str] | None:
    """(what it is, the remedy) of the first form that shows; None where none does."""
    return next(((what, remedy) for form, what, remedy in table if shows(form)), None)


_DATABASES = (
    (r"CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL|.*_PROF_", "nvprof", _NSYS),
    (r"rocpd_(?:api|op)(?:_|$)", "rocmProfileData (rpd)", _TORCH),
    (r"rocpd_", "rocprofv3", _TORCH),
    (r"COMPUTE_TASK_INFO|COMMUNICATION_OP|CANN_API|HCCL", "Ascend NPUs (msprof)", _GPUS),
)


def database_of(tables: Iterable[str]) -> tuple[str, str] | None:
    """Which profiler wrote a SQLite file with these tables, and the remedy; None where it is not known."""
    names = list(tables)
    return _told(_DATABASES, lambda form: any(pattern_of(form).match(name) for name in names))


_DOCUMENTS = (
    (rb'"rocprofiler-sdk-tool"', "is JSON of rocprofv3.", _TORCH),
    (rb'(?s)"schema"\s*:.{0,400}"nodes"\s*:', "is an execution trace (Chakra), which has no times.", _TORCH),
    (rb'"coll_perf"\s*:', "is of NCCL's inspector, and no trace.", _TORCH),
    (rb'"pg_config"\s*:|"comm_lib_version"', "is a flight record of NCCL, and no trace.", _TORCH),
    (rb'"device_traces"\s*:|"segments"\s*:', "is a memory snapshot, and no trace.", _TORCH),
    (rb"speedscope", "is a profile of Python (speedscope).", _TORCH),
    (
        rb'\A\s*\{"Type":|"(?:CudaEvent|NvtxEvent|TraceProcessEvent|globalPid)"\s*:',
        "is JSON of nsys.",
        _SQLITE,
    ),
)


def document_of(text: bytes) -> tuple[str, str] | None:
    """What a JSON file without trace events is that begins so, and the remedy; None where it is not known."""
    return _told(_DOCUMENTS, lambda form: pattern_of(form).search(text))


_LISTS = (
    (
        rb'(?s)\s*\[\s*\{.*"traceEvents"\s*+:\s*+\[',
        "is a list of whole traces, not of events.",
        "Give each as a file of its own, one a rank: jq -c '.[]' FILE | split -l 1 - rank",
    ),
    (rb'(?s)\s*\[.*"NEGOTIATE_[A-Z]', "is Horovod's timeline, which tells no kernels.", _TORCH),
    (rb'\s*\[\s*\{\s*"(?:children|frame)"', "is a tree of Triton's Proton, and no trace.", _TORCH),
    (
        rb'\s*\[\s*\{[^{}]*"cat": "(?:GROUP|COLL|P2P|PROXY|NET)[A-Z_]*", "ph": "[be]"',
        "is of NCCL's profiler, which tells no kernels.",
        _TORCH,
    ),
    (rb'\s*\[\s*\{[^{}]*"[A-Z][a-z]+ \((?:%|ns)\)"\s*:', "is a table of figures.", _SQLITE),
)
_NO_EVENT = (rb'(?s)(?:\s*\[)?\s*\{(?!.*"(?:ph|traceEvents)"\s*:)', "is JSON without any event.", _ANY)


def list_of(text: bytes, *, events: bool) -> tuple[str, str] | None:
    """What JSON without GPU rows is that begins so, and the remedy; None where it is not known. events: what
    has some may have them behind this text."""
    return _told(_LISTS if events else (*_LISTS, _NO_EVENT), lambda form: pattern_of(form).match(text))


_PROCESSES = (
    (r"Ascend Hardware|\bCANN\b", "Ascend NPUs (torch_npu)", _GPUS),
    (r"^(?:AscendCL|AI Core Op)$", "Ascend NPUs (msprof, MindSpore)", _GPUS),
    (r"^/device:TPU|^TPU\b", "TPUs (XLA)", _GPUS),
    (r"^/(?:device|host|job):", "JAX or TensorFlow (XLA)", _NSYS),
    (r"Gaudi|Habana|\bHPU\b|^hpu_op$", "Gaudi accelerators", _GPUS),
    (r"^(?:CPU )?(?:HIP|HSA) API|^GPU\d+$", "rocprof", _TORCH),
    (r"^(?:(?:rocm_)?kernel_dispatch|(?:device|rocm)_hip)", "rocprofv3 or rocprof-sys (Omnitrace)", _TORCH),
    (r"Neuron(?:Core)?\b", "Neuron devices", _GPUS),
    (r"\b(?:HOST|DEVICE)<", "unitrace (Intel)", _TORCH),
    (r"^(?:cuda|cuda_api|nvtx(?:-kernel)?)$", "Nsight Systems, converted to JSON", _SQLITE),
    (r"^dynamo_timed$", "torch.compile, of compiling alone (tlparse)", _TORCH),
    (r"^Session$", "ONNX Runtime", _RUNTIME),
    (r"^FEE$", "VizTracer, of Python alone", _TORCH),
    (r"^(?:CPU|CUDA) functions$", "PyTorch's old torch.autograd.profiler", _TORCH),
)
"""Names of processes, or categories of events, in what other profilers write as the same JSON."""
NAMES_KERNELS = ("ONNX Runtime",)
"""Whose kernels look like PyTorch's, without calls or devices."""


def writer_of(named: Iterable[str]) -> tuple[str, str] | None:
    """Whose trace it is by names of processes and categories, and the remedy; None where it may be
    PyTorch's."""
    names = list(named)
    return _told(_PROCESSES, lambda form: any(pattern_of(form).search(name) for name in names))
