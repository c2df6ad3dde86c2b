"""The pickle of a memory snapshot, read opcode by opcode in bounded memory.

Python's own unpickler builds every dictionary of the file and keeps it: seven times the size of a real
snapshot, sixty times that of a hostile one. Here a dictionary that is a row of the snapshot becomes columns
as soon as it is whole, and what stays is counted against limits. Only opcodes that build plain data are
known: there is no way to name a class or to call anything. Nothing recurses, and memory never grows with what
a reference would expand to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import BinaryIO

from perfdoc.traces.memory.machine import (
    DAMAGED,
    MARGIN_BYTES,
    MAX_STACK,
    TOO_MUCH,
    TRUNCATED,
    Machine,
    Sink,
    SnapshotProblem,
)

_Handler = Callable[[Machine], None]
_EMPTY_LIST, _EMPTY_DICT, _STOP = ord("]"), ord("}"), ord(".")


def load_pickle(file: BinaryIO, sink: Sink) -> object:
    """The value that a file holds, its rows gone to the sink. Raises SnapshotProblem, and OSError."""
    machine = Machine(file, sink)
    machine.refill(2)
    if machine.end < 2 or machine.window[0] != 0x80 or not 2 <= machine.window[1] <= 5:
        raise SnapshotProblem("is not a pickle of protocol 2 to 5")
    stack, handlers, follow = machine.stack, _HANDLERS, sink.follow
    while True:
        if machine.end - machine.at < MARGIN_BYTES and not machine.whole:
            machine.refill(MARGIN_BYTES)
        if machine.at >= machine.end:
            raise SnapshotProblem(TRUNCATED)
        op = machine.window[machine.at]
        if op == _STOP:
            if len(stack) != 1 or machine.marks:
                raise SnapshotProblem(f"{DAMAGED}: it ends in the middle of a value")
            return stack[0]
        if (op != _EMPTY_DICT and op != _EMPTY_LIST) or not follow(machine):
            handler = handlers.get(op)
            if handler is None:
                raise SnapshotProblem(_refusal(op))
            machine.at += 1
            handler(machine)
        if len(stack) > MAX_STACK:
            raise SnapshotProblem(TOO_MUCH)


def _number(form: str, then: Callable[[Machine, int], None]) -> _Handler:
    """An opcode that a number of this form follows."""
    size, unpack = struct.calcsize(form), struct.Struct(form).unpack_from

    def read(machine: Machine) -> None:
        at = machine.at
        if machine.end - at < size:
            raise SnapshotProblem(TRUNCATED)
        machine.at = at + size
        then(machine, unpack(machine.window, at)[0])

    return read


def _ignore(machine: Machine, number: int) -> None:
    """The protocol, and the lengths by which a reader could buffer."""


def _push(machine: Machine, value: object) -> None:
    machine.stack.append(value)


def _push_reference(machine: Machine, index: int) -> None:
    machine.stack.append(machine.refer(index))


def _constant(value: object) -> _Handler:
    return lambda machine: machine.stack.append(value)


_HANDLERS: dict[int, _Handler] = {
    0x80: _number("<B", _ignore),
    0x95: _number("<Q", _ignore),
    ord("N"): _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("K"): _number("<B", _push),
    ord("M"): _number("<H", _push),
    ord("J"): _number("<i", _push),
    ord("G"): _number(">d", _push),
    0x8A: _number("<B", Machine.push_long),
    0x8C: _number("<B", Machine.push_text),
    ord("X"): _number("<I", Machine.push_text),
    0x8D: _number("<Q", Machine.push_text),
    ord("h"): _number("<B", _push_reference),
    ord("j"): _number("<I", _push_reference),
    0x94: lambda machine: machine.put(len(machine.memo)),
    ord("q"): _number("<B", Machine.put),
    ord("r"): _number("<I", Machine.put),
    ord("("): Machine.mark,
    ord("]"): lambda machine: machine.open([]),
    ord("}"): lambda machine: machine.open({}),
    ord(")"): lambda machine: machine.open(()),
    0x85: lambda machine: machine.push_tuple(machine.pop(1)),
    0x86: lambda machine: machine.push_tuple(machine.pop(2)),
    0x87: lambda machine: machine.push_tuple(machine.pop(3)),
    ord("t"): lambda machine: machine.push_tuple(machine.since_mark()),
    ord("a"): lambda machine: machine.append(machine.pop(1)),
    ord("e"): lambda machine: machine.append(machine.since_mark()),
    ord("s"): lambda machine: machine.set(machine.pop(2)),
    ord("u"): lambda machine: machine.set(machine.since_mark()),
}
"""What picklers emit for dictionaries with text as keys, lists, tuples, text and numbers."""

_MAKES_OBJECTS = {
    ord("c"): "GLOBAL",
    0x93: "STACK_GLOBAL",
    ord("R"): "REDUCE",
    ord("b"): "BUILD",
    ord("i"): "INST",
    ord("o"): "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
}


def _refusal(op: int) -> str:
    name = _MAKES_OBJECTS.get(op)
    if name is not None:
        return f"asks for Python objects to be made (pickle opcode {name}), which no memory snapshot does"
    return f"{DAMAGED} (opcode 0x{op:02x})"
