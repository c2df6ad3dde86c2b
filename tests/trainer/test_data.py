"""Who reads which samples, and how text becomes an indexed data set."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perfdoc.trainer import data as data_module
from perfdoc.trainer.config import resolve
from perfdoc.trainer.data import RankSampler, build_corpus, drop_torn, index_text, text_path, writing_alone
from perfdoc.trainer.tokenizer import build_tokenizer, byte_tokenizer, padded_vocab_size
from tests.trainer.launch import need_megatron


def _sampler(rank: int, ranks: int, first: int = 0) -> list[list[int]]:
    return list(RankSampler(first=first, total=16, micro_batch_size=2, dp_rank=rank, dp_size=ranks))


def test_ranks_deal_out_a_global_batch_in_turn() -> None:
    """16 samples in micro-batches of 2 over 2 ranks: rank 0 takes 0-1, 4-5, …; rank 1 takes 2-3, 6-7, …"""
    assert _sampler(0, 2) == [[0, 1], [4, 5], [8, 9], [12, 13]]
    assert _sampler(1, 2) == [[2, 3], [6, 7], [10, 11], [14, 15]]


def test_a_global_batch_is_the_same_set_for_any_number_of_ranks() -> None:
    for first in (0, 8):
        one = sorted(sample for batch in _sampler(0, 1, first) for sample in batch)
        four = sorted(sample for rank in range(4) for batch in _sampler(rank, 4, first) for sample in batch)
        assert one == four == list(range(first, 16))


def test_bytes_are_tokens() -> None:
    tokenizer = build_tokenizer("byte")
    assert tokenizer.tokenize("aé") == [97, 195, 169]
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.pad) == (258, 256, 257)
    assert padded_vocab_size(258, 128) == 384
    assert padded_vocab_size(256, 128) == 256


def test_missing_inputs_name_their_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.text = /nowhere: no such file"):
        text_path("/nowhere")
    pytest.importorskip("tokenizers", reason="the tokenizers package is not installed")
    with pytest.raises(ValueError, match=r"data\.tokenizer = .*missing\.json: No such file"):
        build_tokenizer(str(tmp_path / "missing.json"))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=r"data\.tokenizer = .*bad\.json: not a tokenizer\.json"):
        build_tokenizer(str(tmp_path / "bad.json"))


def test_a_text_is_indexed_once_document_by_document(tmp_path: Path) -> None:
    """Two documents of 2 and 3 letters, each with its newline and the end token: 4 and 5 tokens."""
    need_megatron()
    from perfdoc.trainer import adapt

    adapt.prepare()
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    text = tmp_path / "two.txt"
    text.write_text("ab\n\n\n\ncde\n")
    prefix = index_text(text, byte_tokenizer(), tmp_path / "cache")
    indexed = IndexedDataset(prefix)
    assert [list(map(int, indexed[number])) for number in range(len(indexed))] == [
        [97, 98, 10, 256],
        [99, 100, 101, 10, 256],
    ]
    assert list(indexed.document_indices) == [0, 1, 2]
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    assert len(written) == 2
    assert index_text(text, byte_tokenizer(), tmp_path / "cache") == prefix
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == written
    text.write_text("ab\n\nxyz\n")
    assert index_text(text, byte_tokenizer(), tmp_path / "cache") != prefix


def _indexed(folder: Path) -> tuple[Path, Path]:
    """A text of two documents, and the prefix of its data set."""
    need_megatron()
    from perfdoc.trainer import adapt

    adapt.prepare()
    text = folder / "two.txt"
    text.write_text("ab\n\ncde\n")
    return text, Path(index_text(text, byte_tokenizer(), folder / "cache"))


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_a_damaged_data_cache_is_told_with_its_file(tmp_path: Path, ending: str) -> None:
    text, prefix = _indexed(tmp_path)
    file = prefix.with_name(prefix.name + ending)
    content = file.read_bytes()
    file.write_bytes(content[:-3])
    with pytest.raises(ValueError, match=r"^data\.data_cache: .*\. Remove it") as caught:
        index_text(text, byte_tokenizer(), tmp_path / "cache")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    file.unlink()  # the remedy
    assert index_text(text, byte_tokenizer(), tmp_path / "cache") == str(prefix)
    assert file.read_bytes() == content


@pytest.mark.parametrize("at_once", [1, 1_000_000])
@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (0, b"X", r"\.idx: is no index"),
        (9, b"\x02", r"\.idx: is no index"),  # of another version
        (17, b"\x09", r"\.idx: is no index"),
        (17, b"\x06", r"\.idx: is no index"),  # tokens that are fractions
        (18, b"\xff" * 8, r"\.idx: is truncated"),
        (26, b"\xff\xff", r"\.idx: is truncated"),
        (34, b"\xff\xff\xff\xff", r"\.idx: names tokens that no file has"),
        (34, b"\xff\xff\xff\x7f", r"\.bin: is truncated"),
        (42, b"\xff" * 7 + b"\x7f", r"\.idx: names tokens that no file has"),
        (18, b"\x00", r"\.idx: holds no documents"),
        (26, b"\x00", r"\.idx: holds no documents"),
        (26, b"\x02", r"\.idx: has documents"),  # the second begins, and does not end
        (58, b"\x01", r"\.idx: has documents"),
        (58, b"\x03", r"\.idx: has documents"),
        (66, b"\x03", r"\.idx: has documents"),
        (66, b"\xff" * 8, r"\.idx: has documents"),
    ],
)
def test_a_given_data_set_is_checked_for_its_structure(
    tmp_path: Path, at: int, value: bytes, said: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header of 34 bytes, two lengths of 4, two pointers of 8, three documents of 8."""
    monkeypatch.setattr(data_module, "_AT_ONCE", at_once)
    _, prefix = _indexed(tmp_path)
    data_module.check_structure(prefix, "data.data_path")
    index = prefix.with_name(prefix.name + ".idx")
    content = index.read_bytes()
    assert len(content) == 34 + 2 * 4 + 2 * 8 + 3 * 8
    index.write_bytes(content[:at] + value + content[at + len(value) :])
    with pytest.raises(ValueError, match=rf"^data\.data_path: .*{said}"):
        data_module.check_structure(prefix, "data.data_path")


def test_tokens_of_another_tokenizer_are_told_before_the_model_sees_them() -> None:
    good, bad = ({"tokens": np.array([[0, 1]]), "labels": np.array([[1, n]])} for n in (9, 10))
    assert list(data_module.within_vocabulary(iter([good]), 10, "data.data_path = x")) == [good]
    with pytest.raises(ValueError, match=r"data\.data_path = x: holds token 10, and the tokenizer has 10"):
        list(data_module.within_vocabulary(iter([good, bad]), 10, "data.data_path = x"))
    negative = {"tokens": np.array([[0, -7]]), "labels": np.array([[1, 2]])}
    with pytest.raises(ValueError, match="holds token -7"):
        list(data_module.within_vocabulary(iter([good, negative]), 10, "data.data_path = x"))


@pytest.mark.parametrize(("rank", "read"), [(0, True), (1, False)])
def test_one_rank_reads_the_whole_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, read: bool
) -> None:
    need_megatron()
    from perfdoc.trainer import adapt

    adapt.prepare()
    from megatron.core.datasets import blended_megatron_dataset_builder as builder

    for ending in data_module.ENDINGS:
        (tmp_path / f"x{ending}").touch()

    def stop(*_: object) -> None:
        raise RuntimeError("builds")

    told: list[object] = []
    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
    monkeypatch.setattr("torch.distributed.broadcast_object_list", lambda found, src: told.extend(found))
    monkeypatch.setattr(builder, "BlendedMegatronDatasetBuilder", stop)
    config = resolve("tiny", [f"data_cache={tmp_path}", f"data_path=['{tmp_path / 'x'}']"]).config
    with pytest.raises(ValueError if read else RuntimeError, match="no index" if read else "builds"):
        build_corpus(config, byte_tokenizer())
    assert told[0] == [str(tmp_path / "x")]
    assert (told[1] is not None) == read
    (tmp_path / "x.bin").unlink()
    with pytest.raises(ValueError, match=r"x\.bin: no such file"):
        build_corpus(config, byte_tokenizer())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"one document", "at least two documents"),
        (b"a\n\n\xff\xfe", r"not UTF-8 text \(byte 3\)"),
        (b"", "at least"),
    ],
)
def test_a_text_that_is_none_leaves_nothing_behind(tmp_path: Path, content: bytes, expected: str) -> None:
    need_megatron()
    from perfdoc.trainer import adapt

    adapt.prepare()
    text = tmp_path / "bad.txt"
    text.write_bytes(content)
    with pytest.raises(ValueError, match=expected):
        index_text(text, byte_tokenizer(), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_torn_indices_are_removed_and_whole_ones_stay(tmp_path: Path) -> None:
    """Cut in its numbers, cut in its header, empty: what a full disk and SIGKILL leave of `numpy.save`."""
    whole = tmp_path / "whole.npy"
    np.save(whole, np.arange(1000))
    content = whole.read_bytes()
    for name, length in (("numbers", len(content) - 1), ("header", 20), ("empty", 0)):
        (tmp_path / f"{name}.npy").write_bytes(content[:length])
    (tmp_path / "description.txt").write_text("kept")
    drop_torn(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["description.txt", "whole.npy"]
    assert whole.read_bytes() == content
    drop_torn(tmp_path / "nowhere")


def test_one_run_at_a_time_writes_indices(tmp_path: Path) -> None:
    cache = tmp_path / "shared" / "cache"
    with writing_alone(cache) as alone, (cache / "indices.lock").open("ab") as other:
        assert alone
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (cache / "indices.lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (tmp_path / "file").touch()
    with writing_alone(tmp_path / "file") as alone:
        assert not alone, "where no lock can be had the run goes on without"


@pytest.mark.slow
def test_a_corpus_is_built_under_the_lock(tmp_path: Path) -> None:
    """Another run holds the lock: this one waits for it before it looks at the indices."""
    need_megatron()
    cache = tmp_path / "cache"
    indices = cache / "indices"
    indices.mkdir(parents=True)
    (indices / "being_written.npy").write_bytes(b"\x93NUMPY")
    code = (
        "import torch.distributed as d; from perfdoc.trainer import adapt; adapt.prepare()\n"
        "from perfdoc.trainer.config import resolve; from perfdoc.trainer.data import build_corpus\n"
        "from perfdoc.trainer.tokenizer import byte_tokenizer\n"
        f"store = d.FileStore({str(tmp_path / 'store')!r}, 1)\n"
        "d.init_process_group('gloo', rank=0, world_size=1, store=store)\n"
        f"config = resolve('tiny', ['data_cache={cache}']).config\n"
        "print('begins', flush=True); build_corpus(config, byte_tokenizer())\n"
    )
    with writing_alone(cache):
        run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        assert run.stdout.readline() == "begins\n"
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(timeout=2)
        assert [file.name for file in indices.iterdir()] == ["being_written.npy"]
    assert run.wait(timeout=120) == 0
    run.stdout.close()
    names = [file.name for file in indices.iterdir()]
    assert "being_written.npy" not in names
    assert any(name.endswith("-sample_index.npy") for name in names)
