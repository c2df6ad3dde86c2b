"""Large arrays of numpy in a file without a name: the system keeps in memory what it has room for.

An analysis of one device makes arrays of all its kernels, some 450 bytes a kernel at once. Of 20 M that is
more than many machines have. There numpy asks an allocator of ours for them (NEP 49): small ones come from
malloc as always, large ones are pages of a file that is mapped, so that the system can put them aside and
no analysis has to know. Blocks are reserved before they are written (a full disk would end the process) and
given back with the array. Where the disk has no room, memory it is. It takes twice the time of memory.

numpy calls an allocator with the interpreter's lock held, so that one at a time is at work. A child that is
forked shares these pages: what it writes its parent sees. It gives none back, and makes its own arrays in
memory. perfdoc's workers are started anew.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdoc.profiling.usable_memory import usable_memory_bytes
from perfdoc.traces.machine_code import machine_code
from perfdoc.traces.on_disk import LEFT_FREE_BYTES, folder

_LARGE_BYTES = 1 << 20
"""Of an array: smaller ones are not worth a mapping."""
_ALLOCATOR = """
; In front of every array are 64 bytes, the last three words of them its size, its place in the file, and its
; length there with these, rounded up to pages; 0 of an array that is in memory.
;
; The state: the file's descriptor, its end, how much of it is in use, the most that may be, what is large,
; the bytes of a page.

declare i64 @malloc(i64)
declare void @free(i64)
declare i64 @memcpy(i64, i64, i64)
declare i64 @memset(i64, i32, i64)
declare i64 @mmap(i64, i64, i32, i32, i32, i64)
declare i32 @munmap(i64, i64)
declare i32 @posix_fallocate(i32, i64, i64)
declare i32 @fallocate(i32, i32, i64, i64)

define i64 @get(i64 %begin, i64 %at) {
  %address = add i64 %begin, %at
  %place = inttoptr i64 %address to ptr
  %value = load i64, ptr %place
  ret i64 %value
}

define void @put(i64 %begin, i64 %at, i64 %value) {
  %address = add i64 %begin, %at
  %place = inttoptr i64 %address to ptr
  store i64 %value, ptr %place
  ret void
}

define i64 @headed(i64 %begin, i64 %size, i64 %place, i64 %whole) {
  call void @put(i64 %begin, i64 40, i64 %size)
  call void @put(i64 %begin, i64 48, i64 %place)
  call void @put(i64 %begin, i64 56, i64 %whole)
  %array = add i64 %begin, 64
  ret i64 %array
}

define void @give_back(i64 %state, i64 %place, i64 %whole) {
  %descriptor = call i64 @get(i64 %state, i64 0)
  %file = trunc i64 %descriptor to i32
  %keep.size.and.punch.hole = call i32 @fallocate(i32 %file, i32 3, i64 %place, i64 %whole)
  %used = call i64 @get(i64 %state, i64 16)
  %left = sub i64 %used, %whole
  call void @put(i64 %state, i64 16, i64 %left)
  ret void
}

define i64 @in_memory(i64 %size, i1 %cleared) {
  %all = add i64 %size, 64
  %begin = call i64 @malloc(i64 %all)
  %refused = icmp eq i64 %begin, 0
  br i1 %refused, label %none, label %got
none:
  ret i64 0
got:
  %array = call i64 @headed(i64 %begin, i64 %size, i64 0, i64 0)
  br i1 %cleared, label %clear, label %leave
clear:
  call i64 @memset(i64 %array, i32 0, i64 %size)
  br label %leave
leave:
  ret i64 %array
}

define i64 @given(i64 %state, i64 %size, i1 %cleared) {
  %least = call i64 @get(i64 %state, i64 32)
  %is.large = icmp uge i64 %size, %least
  br i1 %is.large, label %large, label %memory
large:
  %page = call i64 @get(i64 %state, i64 40)
  %with.head = add i64 %size, 63
  %up = add i64 %with.head, %page
  %mask = sub i64 0, %page
  %whole = and i64 %up, %mask
  %used = call i64 @get(i64 %state, i64 16)
  %most = call i64 @get(i64 %state, i64 24)
  %used.then = add i64 %used, %whole
  %fits = icmp ule i64 %used.then, %most
  br i1 %fits, label %reserve, label %memory
reserve:
  %descriptor = call i64 @get(i64 %state, i64 0)
  %file = trunc i64 %descriptor to i32
  %place = call i64 @get(i64 %state, i64 8)
  %wrong = call i32 @posix_fallocate(i32 %file, i64 %place, i64 %whole)
  %reserved = icmp eq i32 %wrong, 0
  br i1 %reserved, label %map, label %memory
map:
  call void @put(i64 %state, i64 16, i64 %used.then)
  ; for reading and writing, shared with the file
  %begin = call i64 @mmap(i64 0, i64 %whole, i32 3, i32 1, i32 %file, i64 %place)
  %failed = icmp eq i64 %begin, -1
  br i1 %failed, label %undo, label %mapped
undo:
  call void @give_back(i64 %state, i64 %place, i64 %whole)
  br label %memory
mapped:
  ; New pages are zeros.
  %end = add i64 %place, %whole
  call void @put(i64 %state, i64 8, i64 %end)
  %array = call i64 @headed(i64 %begin, i64 %size, i64 %place, i64 %whole)
  ret i64 %array
memory:
  %there = call i64 @in_memory(i64 %size, i1 %cleared)
  ret i64 %there
}

define i64 @of_malloc(i64 %state, i64 %size) {
  %array = call i64 @given(i64 %state, i64 %size, i1 false)
  ret i64 %array
}

define i64 @of_calloc(i64 %state, i64 %count, i64 %each) {
  %size = mul i64 %count, %each
  %array = call i64 @given(i64 %state, i64 %size, i1 true)
  ret i64 %array
}

define void @of_free(i64 %state, i64 %array, i64 %unused) {
  %is.none = icmp eq i64 %array, 0
  br i1 %is.none, label %leave, label %some
some:
  %begin = sub i64 %array, 64
  %place = call i64 @get(i64 %begin, i64 48)
  %whole = call i64 @get(i64 %begin, i64 56)
  %is.in.memory = icmp eq i64 %whole, 0
  br i1 %is.in.memory, label %memory, label %file
memory:
  call void @free(i64 %begin)
  ret void
file:
  %unmapped = call i32 @munmap(i64 %begin, i64 %whole)
  call void @give_back(i64 %state, i64 %place, i64 %whole)
  ret void
leave:
  ret void
}

define i64 @of_realloc(i64 %state, i64 %before, i64 %size) {
  %array = call i64 @given(i64 %state, i64 %size, i1 false)
  %refused = icmp eq i64 %array, 0
  %is.new = icmp eq i64 %before, 0
  %as.it.is = or i1 %refused, %is.new
  br i1 %as.it.is, label %leave, label %move
move:
  %begin = sub i64 %before, 64
  %held = call i64 @get(i64 %begin, i64 40)
  %is.shorter = icmp ult i64 %held, %size
  %common = select i1 %is.shorter, i64 %held, i64 %size
  call i64 @memcpy(i64 %array, i64 %before, i64 %common)
  call void @of_free(i64 %state, i64 %before, i64 0)
  br label %leave
leave:
  ret i64 %array
}
"""
_KEEP_SIZE_AND_PUNCH_HOLE = 3
_ARE_MEMORY = (0x01021994, 0x858458F6)
"""tmpfs and ramfs, as Linux numbers them."""
_SET_HANDLER = 304
"""Place of PyDataMem_SetHandler in numpy's table of C functions, since 1.22."""


_LEAVE_FRAC = 0.2
"""Of memory, for what is not counted."""


def is_short_of(need_bytes: int) -> bool:
    """Whether there is not as much memory, and some to spare."""
    return need_bytes > (1 - _LEAVE_FRAC) * usable_memory_bytes()


@contextmanager
def large_arrays_in_a_file() -> Iterator[None]:
    """Meanwhile this thread's large arrays are; they may live longer."""
    if (before := _begin()) is None:
        yield
        return
    try:
        yield
    finally:
        _set_handler(before)


def begin_thread() -> None:
    """For a thread that lives no longer than its work: its large arrays are in a file."""
    _begin()


def _begin() -> Any:
    """The allocator before; None where there is none of ours."""
    if (made := _made()) is None or int(made.state[0]) == _NO_FILE:
        return None
    disk = os.fstatvfs(made.file)
    free_bytes = max(disk.f_bavail * disk.f_frsize - LEFT_FREE_BYTES, 0)
    made.state[_MOST] = int(made.state[_USED]) + free_bytes
    return _set_handler(made.capsule)


def _set_handler(handler: Any) -> Any:
    """numpy's function that takes an allocator for the thread that calls it, and returns the one before."""
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    pointer = pointer_of(("PyCapsule_GetPointer", ctypes.pythonapi))
    table = ctypes.cast(pointer(_numpy()._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])(handler)


def _numpy() -> Any:
    """Raises ImportError."""
    try:
        return import_module("numpy._core._multiarray_umath")
    except ImportError:  # before 2.0
        return import_module("numpy.core._multiarray_umath")


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of numpy/ndarraytypes.h."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        *((name, ctypes.c_void_p) for name in ("state", "malloc", "calloc", "realloc", "free")),
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Made:
    """What the allocator uses, for as long as an array may be freed: until the end."""

    file: int
    state: NDArray[np.uint64]
    handler: _Handler
    name: Any
    capsule: Any


_NO_FILE = 2**32 - 1
"""As a descriptor: -1."""
_USED, _MOST = 2, 3
"""Places in the state."""


@cache
def _made() -> _Made | None:
    """The allocator, made once; None where files cannot be mapped so, or none can be made."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError, ImportError):
        _numpy()
        with tempfile.TemporaryFile(prefix="perfdoc-", dir=folder()) as made:
            if not _gives_back(made.fileno()):
                return None
            file = os.dup(made.fileno())
        state = np.array([file, 0, 0, 0, _LARGE_BYTES, mmap.PAGESIZE], np.uint64)
        functions = machine_code(_ALLOCATOR, "of_malloc", "of_calloc", "of_realloc", "of_free")
        handler = _Handler(b"perfdoc in a file", 1, state.ctypes.data, *functions)
        name = ctypes.create_string_buffer(b"mem_handler")
        capsule_of = ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.c_void_p] * 3)
        new = capsule_of(("PyCapsule_New", ctypes.pythonapi))
        capsule = new(ctypes.addressof(handler), ctypes.addressof(name), None)

        def in_child() -> None:
            state[:4] = _NO_FILE, 0, 0, 0  # nothing is given back, nothing new is in it

        os.register_at_fork(after_in_child=in_child)
        return _Made(file=file, state=state, handler=handler, name=name, capsule=capsule)
    return None


def _gives_back(file: int) -> bool:
    """Whether parts of a file can be given back to a disk: not to one that is memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    kind = ctypes.create_string_buffer(256)  # struct statfs, which begins with the type of the file system
    if libc.fstatfs(file, kind) or ctypes.c_ulong.from_buffer(kind).value in _ARE_MEMORY:
        return False
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
    asked = [libc.fallocate(file, mode, 0, mmap.PAGESIZE) for mode in (0, _KEEP_SIZE_AND_PUNCH_HOLE)]
    return asked == [0, 0]
