"""A rank's logs, one JSON object per line, which survive the end of their writer: steps and collectives.

A PyTorch profiler trace has no waits, no group on gloo's rows and no ranges that end on another thread, so
the facts lie beside the trace as well, on the clock that both kinds of capture can be put on: UTC.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec

from perfdoc.profiling.distributed.collective_name import Dimension
from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.marks import DeviceKind

Record = TypeVar("Record", bound=msgspec.Struct)
MAX_LINE_BYTES = 1 << 20
"""A longer line is no record of ours."""
_CHECKSUM = b',"crc32":'


def encoded(record: msgspec.Struct) -> bytes:
    """The line of a record, with the CRC-32 of its text last: a cut line is known even where it is JSON."""
    text = msgspec.json.encode(record)[:-1]
    return b"%b%b%d}\n" % (text, _CHECKSUM, zlib.crc32(text))


def decoded(line: bytes, decoder: msgspec.json.Decoder[Record]) -> Record:
    """The record of a line. Raises msgspec.DecodeError where it is none, or not as it was written."""
    text, mark, stated = line.rpartition(_CHECKSUM)
    if mark and stated.strip() != b"%d}" % zlib.crc32(text):
        raise msgspec.DecodeError("a part of the line is gone")
    return decoder.decode(line)


class LineWriter:
    """Appends records, each whole in the file when `write` returns.

    A line that an earlier writer left torn is closed off first, so that it spoils no line of this one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._torn = b""
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: one write per line, so that a killed process tears at most its last line.
        self._file = path.open("ab", buffering=0)
        try:
            if _is_torn(path):
                self._file.write(b"\n")
        except OSError:
            self._file.close()
            raise

    def write(self, record: msgspec.Struct) -> None:
        """Append one record. Raises OSError with the path, of which a full disk is the common cause."""
        rest = memoryview(self._torn + encoded(record))
        try:
            while rest:  # a disk with room for a part of it takes that, and says why at the next call
                rest = rest[self._file.write(rest) :]
                self._torn = b"\n"  # closes off what is there, should the rest not follow
            self._torn = b""
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def close(self) -> None:
        """Close the file; safe to repeat."""
        self._file.close()


def read_lines(path: Path, record: type[Record]) -> Iterator[Record]:
    """The records of a file. Lines that are not whole are skipped, as a writer that was killed leaves them.

    Raises TraceError where the file cannot be opened, a line is too long, or a whole line is JSON of
    another kind.
    """
    decoder = msgspec.json.Decoder(record)
    try:
        file = path.open("rb")
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror}.", "Give the run directory.") from error
    with file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise TraceError(path, f"line {number} is longer than {MAX_LINE_BYTES} bytes.")
            if not line.strip():
                continue
            try:
                yield decoded(line, decoder)
            except msgspec.ValidationError as error:
                remedy = "It was written by another version of perfdoc, or by something else."
                raise TraceError(path, f"line {number}: {error}.", remedy) from error
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class Began(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process was when it began to log steps; with its first step. A second one is a restart."""

    world_size: int
    device: DeviceKind
    role: dict[str, int] = {}
    """Its place in each dimension of the layout, such as pp, tp, dp; empty where nothing tells it."""
    memory_bytes: int | None = None
    """That there is: of the GPU, else of the machine."""
    command: tuple[str, ...] = ()
    """What started the job, as far as a process knows it; of rank 0."""
    facts: dict[str, str | int | float | bool | None] = {}
    """What the job was started with, as far as its trainer says it."""
    flops_per_step: float | None = None
    """Of the model, over all ranks, as they were given."""
    flops_per_token: float | None = None
    """Of the model, by its configuration."""
    flops_unknown: str = ""
    """Why neither is known."""
    flops_notes: str = ""
    """What `flops_per_token` leaves out, or counts otherwise."""
    peak_flops_per_second: float | None = None
    """Of one device, as its data sheet says for 16 bits."""


def job_tokens(own: Sequence[float], roles: Sequence[Mapping[str, int]], ranks: int) -> float | None:
    """Tokens of a step over all ranks, by the own ones of some of them. None where their roles do not make
    it certain that each rank has others: ranks of one replica load the same ones."""
    distinct = len({tuple(sorted(role.items())) for role in roles}) == len(roles)
    replicas = all(role.keys() == {"dp"} for role in roles)
    shares = any(role.get(name) for role in roles for name in ("tp", "pp", "cp"))
    all_here = len(roles) == ranks and all(roles) and not shares
    if ranks > 1 and not (distinct and (replicas or all_here)):
        return None
    return sum(own) / len(own) * ranks


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One training step of one rank; of long runs also one row for several early steps, with their means.

    Times of phases are of the rank's own work: waits for other ranks are in none of them.
    """

    step: int
    start_ns: int
    """Nanoseconds of UTC since 1970."""
    duration_ns: int
    """Time to the end of the step on a clock that never jumps; the device has finished where there is one."""
    tokens: int | None = None
    """Tokens of the step over all ranks."""
    loss: float | None = None
    """Mean over the step's tokens; null where this rank does not have it (not the last pipeline stage)."""
    gradient_norm: float | None = None
    """Before clipping, over the whole model; null where it was not computed."""
    learning_rate: float | None = None
    data_ns: int | None = None
    """Part of the duration spent waiting for batches."""
    garbage_ns: int | None = None
    """Part of the duration spent in Python's garbage collector."""
    profiled: bool = False
    skipped: bool = False
    """The optimizer left the parameters as they were (overflow in fp16)."""
    not_finite: tuple[str, ...] = ()
    """Names of the fields that are null because they were infinite or no number."""
    forward_ns: int | None = None
    backward_ns: int | None = None
    optimizer_ns: int | None = None
    wait_ns: int | None = None
    """From the rank's own last work to the end of the synchronisation that follows it, summed over those of
    the step. Its end is the same on all ranks of the group: who waits least is late."""
    unseen_waits: int = 0
    """Waits of the step that were not timed, being too many."""
    rank_tokens: int | None = None
    """Tokens of this rank's own batches, padding included."""
    collections: int | None = None
    """Runs of Python's garbage collector."""
    cpu_ns: int | None = None
    """Time for which the process's threads ran on CPUs."""
    allocated_bytes: int | None = None
    """Peak of PyTorch's CUDA allocator since it was last reset."""
    resident_bytes: int | None = None
    """Of the process, in the machine's memory, without files that it has mapped."""
    steps: int = 1
    """So many steps end with this one; more than one in a row of means."""
    began: Began | None = None
    """In the first row of a process."""


def read_steps(path: Path) -> Iterator[StepRecord]:
    """The steps of a rank in the order of writing; a line torn by the end of its writer is left out.

    After a resume a step may occur twice: the later line counts. Raises TraceError for a file that
    cannot be opened and for a whole line that is no step.
    """
    return read_lines(path, StepRecord)


Completion: TypeAlias = Literal["callback", "wait", "device", "unknown"]


class CollectiveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of one rank. Times are nanoseconds of UTC since 1970; None where it did not happen."""

    operation: str
    """As in `CollectiveName.operation`."""
    group: str
    """Process-group description."""
    group_name: str
    bytes: int | None
    sequence: int
    sent_bytes: int | None = None
    peer: int | None = None
    dimension: Dimension | None = None
    """As in `CollectiveName.dimension`."""
    issue_ns: int
    """The call began."""
    issued_ns: int
    """The call returned; the backend's threads, if it has any, work on."""
    wait_start_ns: int | None = None
    """The first wait() began."""
    wait_end_ns: int | None = None
    done_ns: int | None = None
    """The collective was complete on this rank."""
    completion: Completion
    """How `done_ns` is known. callback: reported by the backend's thread, late by the time that thread
    needed for Python's lock. wait: the end of wait(), so the latest that it can have been; so it is where
    the caller waited at once (`async_op=False`). device: runs on a GPU, whose kernels tell. unknown: never
    waited for and never reported."""


def write_collectives(path: Path, records: Iterable[CollectiveRecord]) -> None:
    """Append records to `collectives/rank<N>.jsonl`; made where it does not exist.

    Raises OSError where it cannot be written.
    """
    with closing(LineWriter(path)) as lines:
        for record in records:
            lines.write(record)
