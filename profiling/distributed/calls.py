"""What each call of a PyTorch process group is, and how many bytes it moves by NCCL's count.

The names are the methods of torch.distributed.ProcessGroup. torch 2.13 names some of them anew
(`all_gather_single` was `_allgather_base`); both spellings are listed, a missing one is skipped.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Arguments: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]


class Message(NamedTuple):
    """The size of one call, by the convention of `CollectiveName.bytes`; None unknown."""

    bytes: int | None
    sent_bytes: int | None = None
    tensor: Any = None
    """One of the tensors, for its device; None where the call has none."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One method of a process group."""

    operation: str
    message: Callable[[Arguments, int], Message]
    """Of the call's arguments and the number of ranks in the group."""
    position: int | None = None
    """Which argument is the tensor, or the list of tensors, whose size is the message's; None where the size
    is not that simple."""
    peer: int | None = None
    """Which argument is the other side's rank in the group; None for a call without one."""


def tensors_in(value: Any) -> list[Any]:
    """The tensors of an argument: one tensor, or any nesting of lists of them."""
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return [] if value is None else [value]


def size_bytes(tensors: list[Any]) -> int | None:
    """Bytes of dense tensors together; None where one of them is sparse."""
    total = 0
    for tensor in tensors:
        if tensor.is_sparse:
            return None
        total += tensor.nbytes
    return total


def argument(arguments: Arguments, position: int, *names: str) -> Any:
    """A call's argument by position or by any of its names; None where it was not given."""
    positional, named = arguments
    if position < len(positional):
        return positional[position]
    return next((named[name] for name in names if name in named), None)


def waits_at_once(arguments: Arguments) -> bool:
    """Whether the caller waits before it does anything else (`async_op=False`); False where not known."""
    positional, named = arguments
    options = named.get("opts", positional[-1] if positional else None)
    return getattr(options, "asyncOp", True) is False


def message_of(call: Call, arguments: Arguments, ranks: int) -> Message:
    """The size of a call; unknown for arguments of a kind that is not foreseen, for training must go on."""
    try:
        return call.message(arguments, ranks)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return Message(bytes=None)


def _tensors(position: int, *names: str) -> Callable[[Arguments, int], Message]:
    def message(arguments: Arguments, ranks: int) -> Message:
        tensors = tensors_in(argument(arguments, position, *names))
        return Message(bytes=size_bytes(tensors), tensor=tensors[0]) if tensors else Message(bytes=None)

    return message


def _all_to_all_single(arguments: Arguments, ranks: int) -> Message:
    tensors = tensors_in(argument(arguments, 1, "input", "input_tensor"))
    if not tensors:
        return Message(bytes=None)
    sent = size_bytes(tensors)
    splits = (argument(arguments, 2, "output_split_sizes"), argument(arguments, 3, "input_split_sizes"))
    # Lists, numpy arrays and tensors are all seen here; only their numbers are compared.
    equal = all(parts is None or len({int(part) for part in parts}) <= 1 for parts in splits)
    part = sent // ranks if sent is not None and equal and sent % ranks == 0 else None
    return Message(bytes=part, sent_bytes=sent, tensor=tensors[0])


def _all_to_all_list(arguments: Arguments, ranks: int) -> Message:
    received = tensors_in(argument(arguments, 0, "output_tensors"))
    tensors = tensors_in(argument(arguments, 1, "input_tensors"))
    if not tensors:
        return Message(bytes=None)
    parts = {size_bytes([tensor]) for tensor in (*received, *tensors)}
    part = parts.pop() if len(parts) == 1 else None
    return Message(bytes=part, sent_bytes=size_bytes(tensors), tensor=tensors[0])


def _nothing(arguments: Arguments, ranks: int) -> Message:
    return Message(bytes=0)


_FIRST = _tensors(0, "tensors", "tensor")
_INPUTS = _tensors(1, "input_tensors", "input_tensor", "inputs", "input", "input_list")
_OUTPUTS = _tensors(0, "output_tensors", "output_tensor", "outputs", "output")

CALLS: Mapping[str, Call] = {
    "allreduce": Call(operation="all_reduce", message=_FIRST, position=0),
    "allreduce_coalesced": Call(operation="all_reduce", message=_FIRST, position=0),
    "broadcast": Call(operation="broadcast", message=_FIRST, position=0),
    "reduce": Call(operation="reduce", message=_FIRST, position=0),
    "allgather": Call(operation="all_gather", message=_INPUTS, position=1),
    "allgather_coalesced": Call(operation="all_gather", message=_INPUTS, position=1),
    "_allgather_base": Call(operation="all_gather", message=_INPUTS, position=1),
    "all_gather_single": Call(operation="all_gather", message=_INPUTS, position=1),
    "allgather_into_tensor_coalesced": Call(operation="all_gather", message=_INPUTS, position=1),
    "all_gather_single_coalesced": Call(operation="all_gather", message=_INPUTS, position=1),
    "reduce_scatter": Call(operation="reduce_scatter", message=_OUTPUTS, position=0),
    "_reduce_scatter_base": Call(operation="reduce_scatter", message=_OUTPUTS, position=0),
    "reduce_scatter_single": Call(operation="reduce_scatter", message=_OUTPUTS, position=0),
    "reduce_scatter_tensor_coalesced": Call(operation="reduce_scatter", message=_OUTPUTS, position=0),
    "reduce_scatter_single_coalesced": Call(operation="reduce_scatter", message=_OUTPUTS, position=0),
    "alltoall_base": Call(operation="all_to_all", message=_all_to_all_single),
    "all_to_all_single": Call(operation="all_to_all", message=_all_to_all_single),
    "alltoall": Call(operation="all_to_all", message=_all_to_all_list),
    "gather": Call(operation="gather", message=_INPUTS, position=1),
    "scatter": Call(operation="scatter", message=_OUTPUTS, position=0),
    "send": Call(operation="send", message=_FIRST, position=0, peer=1),
    "recv": Call(operation="recv", message=_FIRST, position=0, peer=1),
    "recv_anysource": Call(operation="recv", message=_FIRST, position=0),
    "barrier": Call(operation="barrier", message=_nothing),
}
