"""The callback in a loop that calls it as Hugging Face's Trainer does; its base class is made up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from runpy import run_module
from types import SimpleNamespace
from typing import Any

import pytest

from perfdoc.profiling.logs import StepRecord, read_steps
from perfdoc.profiling.own.recording import stop
from tests.profiling.own.tiny_model import TINY

LLAMA = {**TINY, "architectures": ["LlamaForCausalLM"]}
"""Of 1,536 operations a token of a sequence of 8, by hand in test_recording.py."""
LOOP = SimpleNamespace(should_evaluate=False, should_save=False)
ARGUMENTS = SimpleNamespace(logging_steps=10, report_to=[])


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=object))  # type: ignore[arg-type]
    yield run_module("perfdoc.profiling.own.hugging_face")["HuggingFaceCallback"](record=tmp_path, log=())
    stop()


def model_of(config: object, name: str = "LlamaForCausalLM") -> Any:
    return type(name, (), {"config": config, "parameters": lambda self: ()})()


def said_by(**config: object) -> object:
    return SimpleNamespace(to_dict=lambda: {**LLAMA, **config})


def trains(callback: Any, model: object, loader: Any, arguments: object = ARGUMENTS) -> None:
    """As accelerate's loader: a batch is loaded before the one ahead of it is given."""
    state = SimpleNamespace(is_world_process_zero=True, global_step=0)
    callback.on_train_begin(arguments, state, LOOP, model=model)
    batches = iter(loader)
    ahead = next(batches, None)
    while ahead is not None:
        ahead = next(batches, None)
        callback.on_step_begin(arguments, state, LOOP)
        callback.on_pre_optimizer_step(arguments, state, LOOP)
        callback.on_optimizer_step(arguments, state, LOOP)
        state.global_step += 1
        callback.on_step_end(arguments, state, LOOP)
    callback.on_train_end(arguments, state, LOOP)


def loader(sequences: int, length: int) -> Any:
    import torch
    from torch.utils.data import DataLoader

    return DataLoader([{"input_ids": torch.zeros(length, dtype=torch.long)}] * sequences, batch_size=2)  # type: ignore[arg-type]


def rows_of(folder: Path) -> list[StepRecord]:
    stop()
    return list(read_steps(folder / "steps" / "rank0.jsonl"))


class Odd:
    @property
    def config(self) -> object:
        raise RuntimeError("not yet")


@pytest.mark.parametrize("model", [None, 3, model_of(None), model_of({"a": 1}), model_of(3), Odd()])
def test_a_model_without_a_configuration_trains(callback: Any, model: object, tmp_path: Path) -> None:
    trains(callback, model, [1, 2, 3])
    rows = rows_of(tmp_path)
    assert [row.step for row in rows] == [0, 1, 2]
    assert rows[0].began is not None
    assert rows[0].began.flops_unknown == "nothing says the model"


def test_arguments_that_cannot_be_read_end_no_training(
    callback: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = SimpleNamespace(logging_steps=None, report_to=[])
    trains(callback, None, [1, 2], odd)
    assert capsys.readouterr().err.count("on_train_begin") == 1


def test_the_first_batch_is_loaded_before_the_first_step(
    callback: Any, tmp_path: Path, needs_torch: None
) -> None:
    """4 batches of 2 sequences of 8 tokens. The last step loads none."""
    trains(callback, model_of(said_by()), loader(8, 8))
    rows = rows_of(tmp_path)
    assert [row.rank_tokens for row in rows] == [None, 16, 16, None]
    assert [row.began and row.began.flops_per_token for row in rows] == [1536, None, None, None]


def test_each_training_of_a_process_says_its_own_model(
    callback: Any, tmp_path: Path, needs_torch: None
) -> None:
    """The second is of twice the words, 6 x 4·16 operations more, and of shorter sequences: 4 tokens less of
    attention, causal, so that 6 x 4·4 are gone."""
    trains(callback, model_of(said_by()), loader(8, 8))
    trains(callback, model_of(said_by(vocab_size=32)), loader(8, 4))
    trains(callback, SimpleNamespace(_orig_mod=model_of(said_by())), loader(8, 8))
    trains(callback, model_of(None), loader(8, 4))
    told = [(r.began.flops_per_token, r.began.flops_unknown) for r in rows_of(tmp_path) if r.began]
    assert told == [(1536, ""), (1536 + 6 * 64 - 6 * 16, ""), (1536, ""), (None, "nothing says the model")]


def test_the_head_is_that_of_the_model_and_not_of_its_checkpoint(
    callback: Any, tmp_path: Path, needs_torch: None
) -> None:
    trains(callback, model_of(said_by(), "LlamaForSequenceClassification"), loader(4, 8))
    began = rows_of(tmp_path)[0].began
    assert began is not None
    assert began.flops_per_token is None
    assert "LlamaForSequenceClassification" in began.flops_unknown


class Ragged:
    dtype, ndim = SimpleNamespace(is_floating_point=False), 2

    def numel(self) -> int:
        raise RuntimeError("its length is a symbol")


def test_a_batch_that_cannot_be_counted_ends_no_training(
    callback: Any, tmp_path: Path, needs_torch: None
) -> None:
    from torch.utils.data import DataLoader

    loads: Any = DataLoader([1, 2, 3], batch_size=1, collate_fn=lambda _: Ragged())  # type: ignore[arg-type]
    trains(callback, model_of(said_by()), loads)
    assert [row.rank_tokens for row in rows_of(tmp_path)] == [None] * 3
