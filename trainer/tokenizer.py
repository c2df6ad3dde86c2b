"""From text to token numbers: bytes by default, or a Hugging Face tokenizer file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Protocol

BYTES = 256


class Tokenizer(Protocol):
    """What megatron-core's data sets and the trainer ask of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens, the two special ones included."""
        ...

    @property
    def eod(self) -> int:
        """Token that ends a document."""
        ...

    @property
    def pad(self) -> int:
        """Token that no document contains."""
        ...

    @property
    def unique_identifiers(self) -> dict[str, str]:
        """Names the vocabulary; part of the key of every cached index."""
        ...

    def tokenize(self, text: str) -> list[int]:
        """Token numbers of a document, without the end."""
        ...


class ByteTokenizer:
    """One token per byte of UTF-8; 256 ends a document, 257 pads. 258 tokens."""

    vocab_size = BYTES + 2
    eod = BYTES
    pad = BYTES + 1

    @property
    def unique_identifiers(self) -> dict[str, str]:
        """There is only one byte vocabulary."""
        return {"class": "ByteTokenizer"}

    def tokenize(self, text: str) -> list[int]:
        """The text's bytes."""
        return list(text.encode("utf-8"))


class FileTokenizer:
    """A Hugging Face `tokenizer.json`, read by the tokenizers package; end and pad are added after its
    tokens."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Loaded
        except ImportError as error:
            raise ValueError("data.tokenizer: a tokenizer file needs `pip install tokenizers`") from error
        try:
            data = path.read_bytes()
            self._inner: Any = Loaded.from_str(data.decode("utf-8"))
        except OSError as error:
            raise ValueError(f"data.tokenizer = {path}: {error.strerror or error}") from error
        except Exception as error:
            raise ValueError(f"data.tokenizer = {path}: not a tokenizer.json: {error}") from error
        self._digest = hashlib.sha256(data).hexdigest()
        size = self._inner.get_vocab_size(with_added_tokens=True)
        self.vocab_size = size + 2
        self.eod = size
        self.pad = size + 1

    @property
    def unique_identifiers(self) -> dict[str, str]:
        """The file's digest."""
        return {"class": "FileTokenizer", "sha256": self._digest}

    def tokenize(self, text: str) -> list[int]:
        """Token numbers without the special tokens that the file may add around a text."""
        return list(self._inner.encode(text, add_special_tokens=False).ids)


def build_tokenizer(setting: str) -> Tokenizer:
    """`byte`, or the path of a tokenizer.json. Raises ValueError naming data.tokenizer."""
    return ByteTokenizer() if setting == "byte" else FileTokenizer(Path(setting))


def padded_vocab_size(vocab_size: int, divisible_by: int) -> int:
    """The next multiple. 258 tokens, multiples of 128: 384."""
    return -(-vocab_size // divisible_by) * divisible_by
