"""Events of PaddlePaddle's profiler, which writes Kineto's form with names, categories and keys of its own
(chrometracing_logger.cc): lengths stand behind names, and the kind of code behind the number of a thread."""

from __future__ import annotations

import re

import msgspec

_LENGTH = re.compile(rb'\[\d{1,12}\.\d{3} [mu]s\]"')
_THREAD = re.compile(rb'("tid":\s*)"(\d{1,19})\((?:Python|C\+\+)\)"')
_CATEGORY = re.compile(rb'("cat":\s*)"(\w{1,32})"')
_CATEGORIES = {
    b"CudaRuntime": b"cuda_runtime",
    **dict.fromkeys((b"Operator", b"OperatorInner", b"PythonOp"), b"cpu_op"),
    **dict.fromkeys((b"ProfileStep", b"Dataloader", b"Forward", b"Backward"), b"user_annotation"),
    **dict.fromkeys((b"Optimization", b"UserDefined", b"PythonUserDefined"), b"user_annotation"),
}


def is_paddles(event: msgspec.Raw) -> bool:
    """Whether an event has a colour, as Paddle writes of all, and its length in its name; or is of memory, of
    which the first thread may have many before."""
    text = bytes(event)
    return b'"increase_bytes"' in text or (b'"cname"' in text and _LENGTH.search(text) is not None)


def as_kinetos(event: msgspec.Raw) -> msgspec.Raw:
    """The event as Kineto would have written it."""
    text = _LENGTH.sub(b'"', bytes(event), count=1).replace(b'"correlation id"', b'"correlation"', 1)
    text = _CATEGORY.sub(
        lambda found: found[1] + b'"%b"' % _CATEGORIES.get(found[2], found[2]), text, count=1
    )
    return msgspec.Raw(_THREAD.sub(rb"\1\2", text, count=1))
