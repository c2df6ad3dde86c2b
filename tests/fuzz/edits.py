"""Edits that any input may suffer: of values, of trees such as JSON's, and of bytes."""

from __future__ import annotations

from random import Random
from typing import Any

NUMBERS = (
    *(-1, 0, 1, 2, 7, 255, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40 - 1, 2**40, 2**53 + 1),
    *(2**60, 2**61, 2**61 + 1, 2**62, 2**63 - 1, -(2**31), -(2**61), -(2**63)),
)
WIDE_NUMBERS = (*NUMBERS, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30)
FRACTIONS = (0.5, -0.0, 1e-300, 1e300, 5.5, float("nan"), float("inf"), -float("inf"))
TEXTS = (
    *("", " ", "0", "-1", "7", "1e400", "nan", "null", "x" * 3_000, "ä€😀", "\u202e\u0085\x9b31m\x1b[2J"),
    *("\x00", "\n", "<script>alert(1)</script>", "</code><b>", "{{7*7}}", "%s%n", "a|b|`c`", "' OR 1=1 --"),
    *("../../etc/passwd", "nccl", "ncclAllReduce", "ncclDevKernel_AllReduce_Sum_f32_TREE_LL128"),
    *("ncclDevKernel_Broadcast", "nvshmem", "gemm", "cutlass_80_tensorop_bf16_s16816gemm"),
    *("flash_fwd_kernel", "triton_red_fused_add_0", "Memcpy PtoP", "perfdoc.step 0", "perfdoc.step 99"),
    *("perfdoc.rank 0/2", "garbage collection", "stream 7", "ProfilerStep#3", "forward", "backward"),
    *("optimizer", "DataLoader.next", "cudaLaunchKernel", "cudaGraphLaunch_v10000", "cudaMalloc"),
    *("cudaStreamSynchronize", "_v1" * 300, "[0, 1]", '{"a": 1}', "0x1f", "float32", "allreduce"),
)
JSON_SPLICES = (*(bytes([mark]) for mark in b'"{}[],:\\\x00\xff-'), b"9" * 20, b"null", b"NaN")
"""What an edit of bytes puts into JSON: its marks, and what may not stand there."""


def other(rng: Random, value: object = None) -> Any:
    """Something in place of a value: near it, of its kind, or of another."""
    if isinstance(value, bool):
        return rng.choice((not value, None, 2))
    if isinstance(value, int) and rng.random() < 0.6:
        return rng.choice(
            (value + rng.randrange(-5_000, 5_000), value + 1, value - 1, -value, value * 2, value // 2)
        )
    if isinstance(value, float) and rng.random() < 0.6:
        return rng.choice(
            (value + rng.uniform(-5, 5), -value, value * 1000, int(value) if abs(value) < 1e300 else 0.0)
        )
    if isinstance(value, str) and rng.random() < 0.4:
        at = rng.randrange(len(value) + 1)
        return rng.choice(
            (value[:at], value + value, value[:at] + rng.choice(TEXTS) + value[at:], value.upper())
        )
    return rng.choice(
        (
            rng.choice(WIDE_NUMBERS),
            rng.choice(NUMBERS),
            rng.choice(FRACTIONS),
            rng.choice(TEXTS),
            rng.choice(TEXTS),
            rng.choice((None, True, [], {}, [[]], [1, -1], {"a": {"b": None}})),
        )
    )


def edit_tree(rng: Random, root: Any, edits: int) -> Any:
    """A tree of lists and mappings of text with so many places changed. The given one is changed too."""
    for _ in range(edits):
        parent, key = _place(rng, root)
        if parent is None:
            return other(rng, root)
        kind = rng.randrange(8)
        if kind < 4:
            parent[key] = other(rng, parent[key])
        elif kind == 4:
            del parent[key]
        elif kind == 5 and isinstance(parent, list):
            parent.insert(rng.randrange(len(parent) + 1), parent[key])
        elif kind == 5:
            parent[rng.choice(TEXTS)] = parent.pop(key)
        elif kind == 6:
            again, from_key = _place(rng, root)
            if again is not None:
                parent[key] = _copied(again[from_key])
        elif isinstance(parent, list):
            rng.shuffle(parent)
        else:
            parent[rng.choice(TEXTS)] = other(rng)
    return root


def _place(rng: Random, root: Any) -> tuple[Any, Any]:
    """A place in the tree, by walking down: its container and key; (None, None) where there is none."""
    at, found = root, (None, None)
    while isinstance(at, (list, dict)) and at:
        key = rng.randrange(len(at)) if isinstance(at, list) else rng.choice(list(at))
        found, at = (at, key), at[key]
        if rng.random() < 0.15:
            break
    return found


def _copied(tree: Any, depth: int = 0) -> Any:
    if depth > 20:
        return None
    if isinstance(tree, list):
        return [_copied(v, depth + 1) for v in tree]
    return {k: _copied(v, depth + 1) for k, v in tree.items()} if isinstance(tree, dict) else tree


def edit_bytes(rng: Random, content: bytes, edits: int, splices: tuple[bytes, ...] = ()) -> bytes:
    """Bytes with so many places flipped, cut, doubled, moved or overwritten."""
    found = bytearray(content)
    for _ in range(edits):
        at = rng.randrange(len(found) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 64, 1024))
        kind = rng.randrange(8)
        if kind < 3 and at < len(found):
            found[at] = rng.choice((found[at] ^ (1 << rng.randrange(8)), 0, 0xFF, 0x7F, rng.randrange(256)))
        elif kind == 3:
            del found[at : at + length]
        elif kind == 4:
            found[at:at] = found[at : at + length]
        elif kind == 5 and splices:
            found[at:at] = rng.choice(splices)
        elif kind == 6:
            found[at : at + length] = rng.choice((b"\x00", b"\xff", b"\x80")) * min(length, len(found) - at)
        elif kind == 7:
            source = rng.randrange(len(found) + 1)
            found[at : at + length] = found[source : source + length]
    if rng.random() < 0.1:
        del found[rng.randrange(len(found) + 1) :]
    return bytes(found)
