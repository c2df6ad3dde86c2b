"""Whether an indexed data set (NAME.bin, NAME.idx) can be what it says: megatron-core takes any file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENDINGS = (".bin", ".idx")
_HEADER = b"MMIDIDX\x00\x00"
_VERSION = (1).to_bytes(8, "little")
_COUNTS = 34
"""Bytes of the header, version, kind of number and the two counts."""
_TOKEN_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2}
"""By megatron-core's code; the two of fractions are no tokens."""

_AT_ONCE = 1_000_000
"""Sequences checked at a time: the index of a large data set takes gigabytes."""


def check_structure(prefix: Path, setting: str) -> None:
    """That an index says what its tokens can hold. Raises ValueError, one line with the file."""
    import numpy as np

    tokens, index = (prefix.with_name(prefix.name + ending) for ending in ENDINGS)
    try:
        size = tokens.stat().st_size
        content = np.memmap(index, np.uint8, "r") if index.stat().st_size else b""
    except OSError as error:
        raise ValueError(f"{setting}: {error.filename or index}: {error.strerror}") from error
    head = bytes(content[:_COUNTS])
    known = head.startswith(_HEADER + _VERSION) and len(head) == _COUNTS and head[17] in _TOKEN_BYTES
    if not known:
        raise _damaged(index, setting, "is no index of megatron-core's of tokens")
    sequences, documents = (int.from_bytes(head[at : at + 8], "little") for at in (18, 26))
    if _COUNTS + 12 * sequences + 8 * documents > len(content):
        raise _damaged(index, setting, f"is truncated: {len(content):,} bytes")
    if not sequences or not documents:
        raise _damaged(index, setting, "holds no documents")
    lengths = np.frombuffer(content, "<i4", sequences, _COUNTS)
    pointers = np.frombuffer(content, "<i8", sequences, _COUNTS + 4 * sequences)
    begins = np.frombuffer(content, "<i8", documents, _COUNTS + 12 * sequences)
    each = _TOKEN_BYTES[head[17]]
    for at in range(0, sequences, _AT_ONCE):
        length, pointer = lengths[at : at + _AT_ONCE], pointers[at : at + _AT_ONCE]
        if length.min() < 0 or pointer.min() < 0 or pointer.max() > size:
            raise _damaged(index, setting, "names tokens that no file has")
        if (pointer + length * np.int64(each)).max() > size:
            raise _damaged(tokens, setting, f"is truncated: its index names tokens beyond its {size:,} bytes")
    # The last "document" is where the sequences end.
    follow = begins[0] == 0 and begins[-1] == sequences
    for at in range(0, documents, _AT_ONCE):
        follow = follow and bool((np.diff(begins[at : at + _AT_ONCE + 1]) >= 0).all())
    if not follow:
        raise _damaged(index, setting, "has documents that do not follow one another")


def within_vocabulary(
    batches: Iterator[dict[str, Any]], vocabulary: int, what: str
) -> Iterator[dict[str, Any]]:
    """The batches; ValueError for a token that the model has no row for, which it would not name.

    what: the data, by its setting.
    """
    for batch in batches:
        tokens = [batch[key] for key in ("tokens", "labels")]
        largest, least = max(int(t.max()) for t in tokens), min(int(t.min()) for t in tokens)
        if largest >= vocabulary or least < 0:
            wrong = least if least < 0 else largest
            raise ValueError(
                f"{what}: holds token {wrong:,}, and the tokenizer has {vocabulary:,}: it is of another "
                "tokenizer, or damaged. Give its tokenizer (data.tokenizer), or make it again"
            )
        yield batch


def _damaged(file: Path, setting: str, what: str) -> ValueError:
    remedy = "Remove it, and it is made again" if setting == "data.data_cache" else "Make it again"
    return ValueError(f"{setting}: {file}: {what}. {remedy}")
