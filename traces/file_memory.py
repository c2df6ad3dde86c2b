"""Large arrays of numpy in a file without a name: the system keeps in memory what it has room for.

An analysis of one device makes arrays of all its kernels, some 500 bytes a kernel at once. Of 20 M that is
more than many machines have. There numpy asks an allocator of ours for them (NEP 49): small ones come from
malloc as always, large ones are pages of a file that is mapped, so that the system can put them aside and
no analysis has to know. Blocks are reserved before they are written (a full disk would end the process) and
given back with the array. Where the disk has no room, memory it is. It takes twice the time of memory.

numpy calls an allocator with the interpreter's lock held, so that one at a time is at work. A process that
forks shares these pages with its child; perfdoc's workers are started anew.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np

from perfdoc.profiling.usable_memory import usable_memory_bytes
from perfdoc.traces.on_disk import LEFT_FREE_BYTES, folder

_LARGE_BYTES = 1 << 20
"""Of an array: smaller ones are not worth a mapping."""
_HEAD = 64
"""Bytes in front of every array: its size, its place in the file, its length there (0: it is in memory)."""
_SIZE, _AT, _WHOLE = _HEAD - 24, _HEAD - 16, _HEAD - 8
_FILE, _END, _USED, _MOST, _LEAST = 0, 8, 16, 24, 32
"""Where the state has the file's descriptor, its end, how much of it is and may be in use, what is large."""
_PAGE = 4096
_READ_AND_WRITE, _SHARED = 3, 1
_KEEP_SIZE_AND_PUNCH_HOLE = 3
"""As Linux has them."""
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
    if (handler := _handler()) is None:
        yield
        return
    before = _set_handler()(handler)
    try:
        yield
    finally:
        _set_handler()(before)


def begin_thread() -> None:
    """For a thread that lives no longer than its work: its large arrays are in a file."""
    if (handler := _handler()) is not None:
        _set_handler()(handler)


@cache
def _set_handler() -> Any:
    """numpy's function that takes an allocator for the thread that calls it, and returns the one before."""
    core: Any = getattr(np, "_core", None) or np.core
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    pointer = pointer_of(("PyCapsule_GetPointer", ctypes.pythonapi))
    table = ctypes.cast(pointer(core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of numpy/ndarraytypes.h."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        *((name, ctypes.c_void_p) for name in ("state", "malloc", "calloc", "realloc", "free")),
    ]


_alive: list[Any] = []
"""What the allocator uses, for as long as an array may be freed: until the end."""


@cache
def _handler() -> Any:
    """The allocator, made once; None where the system cannot map files so, or no file can be made."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError):
        file = tempfile.TemporaryFile(prefix="perfdoc-", dir=folder())  # noqa: SIM115 -- for good
        disk = os.fstatvfs(file.fileno())
        free_bytes = max(disk.f_bavail * disk.f_frsize - LEFT_FREE_BYTES, 0)
        state = np.array([file.fileno(), 0, 0, free_bytes, _LARGE_BYTES], np.uint64)
        functions = _functions()
        handler = _Handler(
            name=b"perfdoc in a file",
            version=1,
            state=state.ctypes.data,
            **{name: function.address for name, function in functions.items()},
        )
        name = ctypes.create_string_buffer(b"mem_handler")
        capsule_of = ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.c_void_p] * 3)
        new = capsule_of(("PyCapsule_New", ctypes.pythonapi))
        capsule = new(ctypes.addressof(handler), ctypes.addressof(name), None)
        _alive.extend((file, state, functions, handler, name, capsule))
        return capsule
    return None


def _functions() -> dict[str, Any]:
    """The four functions of an allocator, compiled: numpy calls them for every array."""
    from numba import cfunc, njit, types
    from numba.extending import intrinsic

    libc = ctypes.CDLL(None)
    size_t, number, long = ctypes.c_size_t, ctypes.c_int, ctypes.c_longlong

    def of_c(name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(libc, name)
        function.restype, function.argtypes = result, arguments
        return function

    c_malloc, c_free = of_c("malloc", size_t, size_t), of_c("free", None, size_t)
    c_mmap = of_c("mmap", size_t, size_t, size_t, number, number, number, long)
    c_munmap = of_c("munmap", number, size_t, size_t)
    c_reserve = of_c("posix_fallocate", number, number, long, long)
    c_punch = of_c("fallocate", number, number, number, long, long)
    c_copy = of_c("memcpy", size_t, size_t, size_t, size_t)
    c_clear = of_c("memset", size_t, size_t, number, size_t)

    pointer = types.uintp

    def place(context: Any, builder: Any, address: Any) -> Any:
        return builder.inttoptr(address, context.get_value_type(pointer).as_pointer())

    def loaded(_context: Any, _address: Any) -> Any:
        def made(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.load(place(context, builder, arguments[0]))

        return pointer(pointer), made

    def stored(_context: Any, _address: Any, _value: Any) -> Any:
        def made(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            builder.store(arguments[1], place(context, builder, arguments[0]))
            return context.get_dummy_value()

        return types.void(pointer, pointer), made

    get: Any = intrinsic(loaded)
    put: Any = intrinsic(stored)
    none, one, page, failed = (np.uint64(n) for n in (0, 1, _PAGE, 2**64 - 1))
    head, size_at, place_at, whole_at = (np.uint64(n) for n in (_HEAD, _SIZE, _AT, _WHOLE))
    file_of, end_of, used_of, most_of, least_of = (np.uint64(n) for n in (_FILE, _END, _USED, _MOST, _LEAST))
    access, shared, hole = np.int32(_READ_AND_WRITE), np.int32(_SHARED), np.int32(_KEEP_SIZE_AND_PUNCH_HOLE)
    zero = np.int32(0)

    def _in_memory(size: Any, cleared: Any) -> Any:
        begin = c_malloc(size + head)
        if begin == none:
            return none
        if cleared:
            c_clear(begin + head, zero, size)
        put(begin + size_at, size)
        put(begin + whole_at, none)
        return begin + head

    in_memory: Any = njit(_in_memory)

    def _given(state: Any, size: Any, cleared: Any) -> Any:
        whole = (size + head + page - one) // page * page
        file, at, used = np.int32(get(state + file_of)), get(state + end_of), get(state + used_of)
        if size < get(state + least_of) or used + whole > get(state + most_of):
            return in_memory(size, cleared)
        if c_reserve(file, np.int64(at), np.int64(whole)) != 0:
            return in_memory(size, cleared)
        begin = c_mmap(none, whole, access, shared, file, np.int64(at))
        if begin == failed:
            c_punch(file, hole, np.int64(at), np.int64(whole))
            return in_memory(size, cleared)
        put(state + end_of, at + whole)
        put(state + used_of, used + whole)
        put(begin + size_at, size)
        put(begin + place_at, at)
        put(begin + whole_at, whole)
        return begin + head  # new pages of a file are zeros

    given: Any = njit(_given)

    def _freed(state: Any, array: Any) -> None:
        begin = array - head
        whole: Any = get(begin + whole_at)
        if whole == none:
            c_free(begin)
            return
        at: Any = get(begin + place_at)
        c_munmap(begin, whole)
        c_punch(np.int32(get(state + file_of)), hole, np.int64(at), np.int64(whole))
        put(state + used_of, get(state + used_of) - whole)

    freed: Any = njit(_freed)

    def malloc(state: Any, size: Any) -> Any:
        return given(state, size, False)

    def calloc(state: Any, count: Any, each: Any) -> Any:
        return given(state, count * each, True)

    def realloc(state: Any, array: Any, size: Any) -> Any:
        found = given(state, size, False)
        if array != none and found != none:
            c_copy(found, array, min(get(array - head + size_at), size))
            freed(state, array)
        return found

    def free(state: Any, array: Any, _size: Any) -> None:
        if array != none:
            freed(state, array)

    signatures = {
        malloc: pointer(pointer, pointer),
        calloc: pointer(pointer, pointer, pointer),
        realloc: pointer(pointer, pointer, pointer),
        free: types.void(pointer, pointer, pointer),
    }
    return {function.__name__: cfunc(signature)(function) for function, signature in signatures.items()}
