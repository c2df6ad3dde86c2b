"""Values in trace events, read leniently: exact times, and the arguments of each category.

Kineto writes microseconds, as integers (until 2024) or with three decimals. An epoch time in
microseconds with decimals needs 19 digits and a float64 holds 16, so the text of the number is
converted and never a float.
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, TypeGuard, TypeVar

import msgspec

from perfdoc.patterns import pattern_of
from perfdoc.traces.kineto.names import CALLS, COPIES, KERNELS, OPERATORS
from perfdoc.traces.kineto.repair import repair
from perfdoc.traces.kineto.unpack import RECAPTURE
from perfdoc.traces.model import UNKNOWN, CopyKind, SyncKind
from perfdoc.traces.table import INVALID_U32
from perfdoc.traces.validate import MAX_CORRELATION

SYNC_KINDS = {
    "Event Sync": SyncKind.EVENT_SYNCHRONIZE,
    "Stream Wait Event": SyncKind.STREAM_WAIT_EVENT,
    "Stream Sync": SyncKind.STREAM_SYNCHRONIZE,
    "Context Sync": SyncKind.DEVICE_SYNCHRONIZE,
}
"""By Kineto's `cuda_sync_kind`."""
_NS_PER_US = 1000
INT64_END = 1 << 63
_EPOCH_IN_NS = 10**18
"""Of September 2001; four times it is in 2096."""
_IN_NS = "a time that seems to be in nanoseconds since 1970, where ts is in microseconds"
_TO_MICROSECONDS = (
    "Divide ts and dur by 1000 (displayTimeUnit does not change their unit), or export the trace again."
)
_CONTEXT = Context(prec=100, Emax=999_999_999, Emin=-999_999_999)
_MAX_EXPONENT = 20
_DIGITS_MAX = 40
"""Of more decimals the others are cut off."""


class Number(str):
    """The text of a JSON number with a point or an exponent, kept as written. No text of the program's: where
    that is asked for, `is_text` tells."""

    __slots__ = ()


def is_text(value: object) -> TypeGuard[str]:
    """Whether a field was written as text, and not as a number."""
    return type(value) is str


def interval_ns(start_us: object, duration_us: object) -> tuple[int, int]:
    """Start and end in ns of an event's `ts` and `dur` (int or Number, in µs).

    1.0005 µs and 0.0005 µs end at 1.001 µs exactly: the end is rounded from the exact sum, so two
    intervals that touch in the file touch here. More than three decimals round half to even.
    Raises ValueError (what is wrong, without the event) for what is not a number, a negative
    duration and a time outside int64.
    """
    begun, decimals = _decimal(start_us, "ts")
    lasts, places = _decimal(duration_us, "dur")
    if places > decimals:
        begun, decimals = begun * 10 ** (places - decimals), places
    else:
        lasts *= 10 ** (decimals - places)
    start, end = _rounded_ns(begun, decimals), _rounded_ns(begun + lasts, decimals)
    if end < start:
        raise ValueError(f"a negative duration (dur {_shown(duration_us)})")
    if _EPOCH_IN_NS <= start // _NS_PER_US < 4 * _EPOCH_IN_NS:
        raise ValueError(f"{_IN_NS} (ts {_shown(start_us)})")
    if start < -INT64_END or end >= INT64_END:
        raise ValueError(f"a time that does not fit 64-bit nanoseconds (ts {_shown(start_us)})")
    return start, end


def remedy_of(error: str) -> str:
    """What to do about a file of which no event can be read, by what is wrong with its first."""
    return _TO_MICROSECONDS if _IN_NS in error else RECAPTURE


def instant_ns(time_us: object) -> int:
    """One time in ns; errors as for interval_ns."""
    return interval_ns(time_us, 0)[0]


_DECIMAL = pattern_of(r"-?\d{1,19}(?:\.\d{1,9})?")
"""A time that a program wrote as text."""


def _decimal(value: object, field: str) -> tuple[int, int]:
    """(Digits, how many of them are decimals): 1.25 is (125, 2)."""
    if type(value) is int:
        return value, 0
    if type(value) is str and _DECIMAL.fullmatch(value):
        value = Number(value)
    if type(value) is not Number:
        raise ValueError(f"no {field}" if value is None else f"a {field} that is not a number")
    whole, _, decimals = value.partition(".")
    if len(value) <= _DIGITS_MAX:
        try:
            return int(whole + decimals), len(decimals)
        except ValueError:
            pass  # an exponent
    exact = Decimal(value)
    if exact and exact.adjusted() > _MAX_EXPONENT:
        raise ValueError(f"a time that does not fit 64-bit nanoseconds ({field} {_shown(value)})")
    return int(_CONTEXT.scaleb(exact, _DIGITS_MAX)), _DIGITS_MAX


def _rounded_ns(digits: int, decimals: int) -> int:
    """Of µs; half to even."""
    unit: int = 10 ** abs(decimals - 3)
    if decimals <= 3:
        return digits * unit
    whole, rest = divmod(digits, unit)
    return whole + (2 * rest > unit or (2 * rest == unit and whole & 1))


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


_EXACT = 1 << 53
"""Below it a float holds every whole number."""
_TRAILING_INTEGER = pattern_of(r"(?:\A|stream )(-?\d{1,19})\s*\Z")
_HEX = pattern_of(r"\A0x[0-9a-fA-F]{1,16}\Z")


class ThreadNameArgs(msgspec.Struct, gc=False):
    """Arguments of a `thread_name` metadata event."""

    name: Any = None


class MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of a `[memory]` instant: what PyTorch's allocator has of a device from then on."""

    device: Any = msgspec.field(name="Device Id", default=None)
    device_type: Any = msgspec.field(name="Device Type", default=None)
    """PyTorch's number of the kind of device; 0 is the CPU."""
    allocated: Any = msgspec.field(name="Total Allocated", default=None)
    reserved: Any = msgspec.field(name="Total Reserved", default=None)


NO_INPUTS = msgspec.Raw()


class Inputs(msgspec.Struct, gc=False):
    """Arguments of an operator."""

    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NO_INPUTS)
    old_dims: msgspec.Raw = msgspec.field(name="Input dims", default=NO_INPUTS)
    dtypes: msgspec.Raw = msgspec.field(name="Input type", default=NO_INPUTS)
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NO_INPUTS)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=NO_INPUTS)


class DeviceArgs(msgspec.Struct, gc=False):
    """Arguments of a kernel or a copy, but for what else a collective has."""

    device: Any = None
    in_device: Any = msgspec.field(name="inDevice", default=None)
    """Peer copies name the device that ran them so."""
    stream: Any = None
    """Of a `cuda_sync` row the one that waits."""
    correlation: Any = None
    external: Any = msgspec.field(name="External id", default=None)
    bytes: Any = None
    grid: Any = None
    block: Any = None
    graph_node: Any = msgspec.field(name="graph node id", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    group_name: Any = msgspec.field(name="Process Group Name", default=None)


class Args(DeviceArgs, gc=False):
    """Arguments of the rows that are read, of whichever category; what is no argument of a row is None."""

    kind: Any = msgspec.field(name="cuda_sync_kind", default=None)
    source_stream: Any = msgspec.field(name="wait_on_stream", default=None)
    source_correlation: Any = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)
    awaited_event: Any = msgspec.field(name="wait_on_cuda_event_id", default=None)
    event: Any = msgspec.field(name="event_id", default=None)
    """Of a `cuda_event` row (2025 and later)."""
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    in_splits: Any = msgspec.field(name="In split size", default=None)
    dtype: Any = None
    group_size: Any = msgspec.field(name="Group size", default=None)
    group_description: Any = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)
    source_rank: Any = msgspec.field(name="Src Rank", default=None)
    destination_rank: Any = msgspec.field(name="Dst Rank", default=None)
    rank: Any = msgspec.field(name="Rank", default=None)


def integer(value: object) -> int:
    """A whole number, also written as text (`7`, `stream 7`, `0x1f`) or as 7.0; -1 for anything else, and for
    one that does not fit int64."""
    if type(value) is int:
        number = value
    elif type(value) is float and value.is_integer() and abs(value) < _EXACT:
        number = int(value)
    elif isinstance(value, str) and (match := _TRAILING_INTEGER.search(value)):
        number = int(match.group(1))
    elif isinstance(value, str) and _HEX.match(value):
        number = int(value, 16)
    else:
        return UNKNOWN
    return number if -INT64_END <= number < INT64_END else UNKNOWN


def non_negative(value: object) -> int:
    """As integer, with -1 for every negative and for CUPTI's 32-bit `invalid`."""
    if type(value) is int and 0 <= value < INVALID_U32:  # as nearly all
        return value
    number = integer(value)
    return UNKNOWN if number < 0 or number == INVALID_U32 else number


def positive(value: object) -> int:
    """As non_negative, with -1 for 0 too: CUPTI counts correlations and graph nodes from 1."""
    return non_negative(value) or UNKNOWN


def correlation_id(value: object) -> int:
    """As positive, with -1 for what is no correlation id of CUPTI's too."""
    number = positive(value)
    return number if number < MAX_CORRELATION else UNKNOWN


_COPY_ENDS = pattern_of(
    r"(?:Copy|Memcpy|(?<![a-zA-Z]))(Host|Device|[HMDP])(?:to|To|2)(Host|Device|[HMDP])(?![a-z])"
)
"""`HtoD` of CUPTI and of ROCm since 2023, `CopyHostToDevice` before; Intel's `M2D`, M the host's memory."""
_COPY_KINDS = {
    **dict.fromkeys(("HD", "MD"), CopyKind.HOST_TO_DEVICE),
    **dict.fromkeys(("DH", "DM"), CopyKind.DEVICE_TO_HOST),
    "DD": CopyKind.DEVICE_TO_DEVICE,
    "PP": CopyKind.PEER_TO_PEER,
    **dict.fromkeys(("HH", "MM"), CopyKind.HOST_TO_HOST),
}
_COPY_NAME = 80
"""Characters of a copy's name that are looked at."""


@lru_cache(maxsize=256)
def copy_kind(name: str) -> CopyKind:
    """From where to where a copy of this name goes.

    >>> copy_kind("Memcpy DtoH (Device -> Pageable)") is copy_kind("CopyDeviceToHost")
    True
    """
    ends = _COPY_ENDS.search(name[:_COPY_NAME])
    return _COPY_KINDS.get(ends[1][0] + ends[2][0], CopyKind.OTHER) if ends else CopyKind.OTHER


def product(value: object) -> int:
    """The product of a launch dimension `[x, y, z]`; -1 where it is not one."""
    if type(value) is not list or not 1 <= len(value) <= 3:
        return UNKNOWN
    total = 1
    for part in value:
        if type(part) is not int or part <= 0:
            return UNKNOWN
        total *= part
    return total if total < INT64_END else UNKNOWN


READERS = {
    **dict.fromkeys(("correlation", "source_correlation"), correlation_id),
    **dict.fromkeys(("stream", "source_stream", "event", "bytes"), non_negative),
    **dict.fromkeys(("grid_blocks", "block_threads"), product),
    "graph_node": positive,
}
"""Of columns that are kept as they stand in the file until many are read at once."""


def text(value: object) -> str:
    """Text or a whole number as text; empty for anything else."""
    if is_text(value):
        return value
    return str(value) if type(value) is int else ""


_Args = TypeVar("_Args", bound=msgspec.Struct)
ARGS = msgspec.json.Decoder(Args)
_CallArgs = msgspec.defstruct("CallArgs", [("correlation", Any, None)])
DECODERS: dict[str | None, msgspec.json.Decoder[Any]] = dict.fromkeys(OPERATORS, msgspec.json.Decoder(Inputs))
DECODERS |= dict.fromkeys(CALLS, msgspec.json.Decoder(_CallArgs))
DECODERS |= dict.fromkeys((*KERNELS, *COPIES), msgspec.json.Decoder(DeviceArgs))
"""By category with few arguments that are read, in half the time of all; others may hold what cannot be."""
MEMORY_ARGS = msgspec.json.Decoder(MemoryArgs)
THREAD_NAME_ARGS = msgspec.json.Decoder(ThreadNameArgs)


def decode_args(decoder: msgspec.json.Decoder[_Args], args: msgspec.Raw, *, strict: bool = True) -> _Args:
    """The arguments of an event; missing ones are all None, odd ones an error unless not strict."""
    try:
        return decoder.decode(args)  # as nearly all
    except (msgspec.DecodeError, UnicodeDecodeError):
        content = bytes(args)
    if content in (b"", b"null"):
        content = b"{}"
    try:
        return decoder.decode(repair(content))
    except msgspec.DecodeError as error:
        if not strict:
            return decoder.decode(b"{}")
        if isinstance(error, msgspec.ValidationError):
            raise ValueError("args that are not an object of plain values") from None
        raise ValueError(f"args that cannot be read: {error}") from None
