"""Text to batches, through megatron-core's indexed data set, GPTDataset and blended builder.

Whether a data set can be what it says is checked first: megatron-core takes any file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfdoc.profiling.errors import one_line
from perfdoc.profiling.whole_file import whole_file
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.tokenizer import Tokenizer

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


TEXT_FILE = Path(__file__).with_name("workshop.txt")
"""The text that ships: 420 short stories of a small grammar, enough structure to learn within a minute."""
MAX_TEXT_BYTES = 8 << 30


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The training and validation data sets; None where the split has no share."""

    train: Any
    valid: Any


def text_path(setting: str) -> Path:
    """The text file of `data.text`. Raises ValueError when it cannot be read."""
    path = TEXT_FILE if setting == "builtin" else Path(setting)
    if not path.is_file():
        raise ValueError(f"data.text = {setting}: no such file")
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise ValueError(
            f"data.text = {setting}: over {MAX_TEXT_BYTES >> 30} GiB; index it and give data.data_path"
        )
    return path


def check_files(config: Config, *, structure: bool = True) -> None:
    """Raise ValueError where the text, or a data set that is given in its place, is not there.

    structure: whether to read the data sets' indices too.
    """
    if not config.data.data_path:
        text_path(config.data.text)
    for prefix in config.data.data_path:
        for ending in ENDINGS:
            if not Path(prefix + ending).is_file():
                raise ValueError(f"data.data_path: {prefix}{ending}: no such file")
        if structure:
            check_structure(Path(prefix), "data.data_path")


def index_text(path: Path, tokenizer: Tokenizer, cache: Path) -> str:
    """Tokenise a text into an indexed data set unless it is there already; returns its prefix.

    Documents are separated by blank lines and end with the end-of-document token. The prefix carries a
    digest of the text and the vocabulary, so a changed file is indexed anew. Files appear whole or not at
    all. Raises ValueError for a text that is none, for damaged files, and where the cache cannot be written.
    """
    import numpy as np
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"data.text = {path}: {error.strerror}") from error
    digest = hashlib.sha256(content)
    digest.update(repr(sorted(tokenizer.unique_identifiers.items())).encode())
    prefix = cache / f"{path.stem}-{digest.hexdigest()[:16]}"
    final = [prefix.with_name(prefix.name + ending) for ending in ENDINGS]
    if all(file.is_file() for file in final):
        check_structure(prefix, "data.data_cache")
        return str(prefix)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"data.text = {path}: not UTF-8 text (byte {error.start})") from error
    text = text.replace("\r\n", "\n")
    documents = [document.strip() for document in text.split("\n\n") if document.strip()]
    if len(documents) < 2:
        raise ValueError(f"data.text = {path}: needs at least two documents separated by blank lines")
    builder = None
    try:
        with ExitStack() as undo:
            tokens_file, index = (undo.enter_context(whole_file(file, replace=True)) for file in final)
            builder = IndexedDatasetBuilder(str(tokens_file), dtype=DType.optimal_dtype(tokenizer.vocab_size))
            for document in documents:
                tokens = [*tokenizer.tokenize(document + "\n"), tokenizer.eod]
                builder.add_item(torch.from_numpy(np.asarray(tokens, dtype=np.int64)))
                builder.end_document()
            builder.finalize(str(index))
    except OSError as error:
        raise ValueError(_unwritten(error.filename or cache, error)) from error
    finally:
        if builder is not None:
            with contextlib.suppress(OSError):  # what it still holds does not fit either
                builder.data_file.close()
    return str(prefix)


def _unwritten(where: Path | str, error: OSError) -> str:
    # numpy says how much of an array fitted, and no reason.
    reason = f": {error.strerror}" if error.strerror else f" (is the disk full?): {one_line(error)}"
    return f"data.data_cache: {where}: cannot be written{reason}"


@contextlib.contextmanager
def writing_alone(cache: Path) -> Iterator[bool]:
    """Wait until no other run writes sample indices to a shared cache, and keep them out meanwhile.

    Yields False, without waiting, where the file system has no locks or the lock file cannot be written. The
    kernel lets go of the lock when its holder is killed.
    """
    with contextlib.ExitStack() as stack:
        held = False
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((cache / "indices.lock").open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
            held = True
        yield held


def _with_remedy(error: Exception, indices: Path) -> Exception:
    """What to raise for a failed build: a ValueError in one line where a file is at fault."""
    cause = error.__cause__
    if not isinstance(cause, OSError):  # which the builder wraps in advice of many lines
        return error
    if isinstance(cause, PermissionError) and cause.filename:
        return ValueError(f"data: {one_line(cause)}")
    return ValueError(_unwritten(cause.filename or indices, cause))


def drop_torn(indices: Path) -> None:
    """Remove sample indices that a full disk or a killed run left torn, while no other run writes there:
    megatron-core takes any file for whole, and builds what is missing."""
    import numpy as np

    for file in indices.glob("*.npy"):
        try:
            np.load(file, mmap_mode="r")
        except PermissionError:
            continue
        except (OSError, ValueError, EOFError):
            file.unlink(missing_ok=True)


def build_corpus(config: Config, tokenizer: Tokenizer) -> Corpus:
    """Both data sets on this rank. Rank 0 writes the caches; the others wait for it and read.

    `data.data_cache` has to be a folder that all nodes see. Raises ValueError for data that cannot be used
    and a cache that cannot be written.
    """
    import torch.distributed as dist
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    cache = Path(config.data.data_cache)
    first = dist.get_rank() == 0
    found: list[Any] = [list(config.data.data_path), None]
    if first:
        # The other ranks must hear of a failure too, or they would wait for ever.
        try:
            if config.data.data_path:
                check_files(config)
            else:
                found[0] = [index_text(text_path(config.data.text), tokenizer, cache)]
        except ValueError as error:
            found[1] = str(error)
    dist.broadcast_object_list(found, src=0)
    prefixes, failure = found
    if failure is not None:
        raise ValueError(failure)
    if config.data.data_path and not first:  # another node may not have them
        check_files(config, structure=False)
    training, indices = config.training, cache / "indices"
    settings = GPTDatasetConfig(
        random_seed=training.seed,
        sequence_length=config.model.seq_length,
        blend=(prefixes, None),
        split=config.data.split,
        path_to_cache=str(indices),
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [
        training.train_iters * training.global_batch_size,
        training.eval_iters * training.global_batch_size if training.eval_interval else 0,
        0,
    ]
    with writing_alone(cache) if first else contextlib.nullcontext(False) as alone:
        if alone:
            drop_torn(indices)
        try:
            train, valid, _ = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, settings).build()
        except Exception as error:
            if alone:
                drop_torn(indices)
            explained = _with_remedy(error, indices)
            if explained is error:
                raise
            raise explained from error
    return Corpus(train=train, valid=valid)


class RankSampler:
    """Sample numbers of one data-parallel rank, micro-batch by micro-batch.

    A global batch is the same set of samples whatever the number of ranks: micro-batches are dealt out in
    turn.
    """

    def __init__(self, *, first: int, total: int, micro_batch_size: int, dp_rank: int, dp_size: int) -> None:
        self.first = first
        self.total = total
        self.micro_batch_size = micro_batch_size
        self.dp_rank = dp_rank
        self.dp_size = dp_size

    def __iter__(self) -> Iterator[list[int]]:
        """Lists of micro_batch_size sample numbers."""
        stride = self.micro_batch_size * self.dp_size
        for start in range(self.first, self.total - stride + 1, stride):
            own = start + self.dp_rank * self.micro_batch_size
            yield list(range(own, own + self.micro_batch_size))

    def __len__(self) -> int:
        """Number of micro-batches left."""
        return max(0, (self.total - self.first) // (self.micro_batch_size * self.dp_size))


def batches(
    dataset: Any, config: Config, *, first: int, total: int, dp_rank: int, dp_size: int
) -> Iterator[dict[str, Any]]:
    """Micro-batches of samples `first` to `total`: tokens, labels, loss_mask, position_ids
    `[micro batch, seq]`."""
    import torch
    from torch.utils.data import DataLoader

    sampler = RankSampler(
        first=first,
        total=total,
        micro_batch_size=config.training.micro_batch_size,
        dp_rank=dp_rank,
        dp_size=dp_size,
    )
    workers = config.data.dataloader_num_workers
    # A loader draws a seed when it starts. From the default generator that would move the model's random
    # numbers on a CPU, and a resumed run, which starts its loader later, would part from the uninterrupted
    # one.
    own_draws = torch.Generator().manual_seed(config.training.seed)
    loaded = iter(DataLoader(dataset, batch_sampler=sampler, num_workers=workers, generator=own_draws))
    given = f"data.data_path = {','.join(config.data.data_path)}"
    what = given if config.data.data_path else f"data.data_cache = {config.data.data_cache}"
    return within_vocabulary(loaded, dataset.config.tokenizer.vocab_size, what)
