"""From text to token numbers: bytes by default, or a Hugging Face tokenizer file."""

import hashlib
from collections.abc import Callable
from pathlib import Path


class Tokenizer:
    """What megatron-core's data sets and the trainer ask of a tokenizer: two tokens follow its own ones."""

    def __init__(self, size: int, tokenize: Callable[[str], list[int]], identifiers: dict[str, str]) -> None:
        self.vocab_size = size + 2
        self.eod = size
        """Ends a document."""
        self.pad = size + 1
        """In no document."""
        self.tokenize = tokenize
        """Token numbers of a document, without the end."""
        self.unique_identifiers = identifiers
        """Names the vocabulary; part of the key of every cached index."""


def byte_tokenizer() -> Tokenizer:
    """One token per byte of UTF-8; 256 ends a document, 257 pads."""
    return Tokenizer(256, lambda text: list(text.encode("utf-8")), {"class": "ByteTokenizer"})


def build_tokenizer(setting: str) -> Tokenizer:
    """`byte`, or the path of a Hugging Face `tokenizer.json`, which the tokenizers package reads.

    Raises ValueError naming data.tokenizer.
    """
    if setting == "byte":
        return byte_tokenizer()
    try:
        from tokenizers import Tokenizer as Loaded
    except ImportError as error:
        raise ValueError("data.tokenizer: a tokenizer file needs `pip install tokenizers`") from error
    try:
        data = Path(setting).read_bytes()
        inner = Loaded.from_str(data.decode("utf-8"))
    except OSError as error:
        raise ValueError(f"data.tokenizer = {setting}: {error.strerror or error}") from error
    except Exception as error:
        raise ValueError(f"data.tokenizer = {setting}: not a tokenizer.json: {error}") from error
    return Tokenizer(
        inner.get_vocab_size(with_added_tokens=True),
        # Without the special tokens that the file may add around a text.
        lambda text: list(inner.encode(text, add_special_tokens=False).ids),
        {"class": "FileTokenizer", "sha256": hashlib.sha256(data).hexdigest()},
    )


def padded_vocab_size(vocab_size: int, divisible_by: int) -> int:
    """The next multiple. 258 tokens, multiples of 128: 384."""
    return -(-vocab_size // divisible_by) * divisible_by
