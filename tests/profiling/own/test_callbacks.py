"""The callbacks with the real libraries on the CPU, and what perfdoc reads of what they wrote.

Lightning and transformers are in no extra of ours: docs/own_trainer.md says how to run these.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdoc.profiling.own.loop import Loop
from perfdoc.profiling.own.megatron import BridgeCallback
from tests.profiling.own.traces import counted, names_in

HUGGING_FACE = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from perfdoc.profiling import HuggingFaceCallback

config = LlamaConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
tokens = torch.randint(0, 64, (8,))
data = [{{"input_ids": tokens, "labels": tokens}}] * {batches}
arguments = TrainingArguments(
    output_dir=sys.argv[1] + "/out", max_steps=5,
    per_device_train_batch_size=2, gradient_accumulation_steps=2,
    report_to=[], use_cpu=True, disable_tqdm=True, {beside})
Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=data, eval_dataset=data[:4],
        callbacks=[HuggingFaceCallback(steps=(2, 4), folder=sys.argv[1])]).train()
"""
LIGHTNING = """
import sys, torch
import lightning.pytorch as pl
from torch.utils.data import DataLoader
from perfdoc.profiling import LightningCallback

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def validation_step(self, batch, index):
        self.layer(batch)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = DataLoader(torch.ones(20, 8), batch_size=4)
pl.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, val_check_interval=3,
           enable_progress_bar=False, enable_model_summary=False,
           callbacks=[LightningCallback(steps=(2, 4), folder=sys.argv[1])]).fit(Model(), data, data)
"""


def trained(program: str, library: str, folder: Path) -> dict[str, int]:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed (docs/own_trainer.md)")
    line = [sys.executable, "-c", program, str(folder)]
    subprocess.run(line, check=True, capture_output=True, timeout=300)
    return dict(counted(names_in(folder / "traces" / "rank0.json.gz")))


def test_hugging_face(needs_torch: None, tmp_path: Path) -> None:
    by_steps = 'eval_strategy="steps", eval_steps=3, save_strategy="no"'
    names = trained(HUGGING_FACE.format(beside=by_steps, batches=64), "transformers", tmp_path)
    assert {n for n in names if n.startswith("perfdoc.step")} == {"perfdoc.step 2", "perfdoc.step 3"}
    # Two micro-batches a step; the evaluation follows step 2.
    assert (names["perfdoc.forward"], names["perfdoc.backward"], names["perfdoc.optimizer"]) == (4, 4, 2)
    assert names["perfdoc.evaluation"] == 1
    assert names["perfdoc.data"] >= 2


def test_hugging_face_by_epochs(needs_torch: None, tmp_path: Path) -> None:
    """Two steps an epoch: what follows step 1 comes before the window, what follows step 3 in it."""
    by_epochs = 'eval_strategy="epoch", save_strategy="epoch"'
    program = HUGGING_FACE.format(beside=by_epochs, batches=8).replace("(2, 4)", "(2, 5)")
    names = trained(program, "transformers", tmp_path)
    assert {n for n in names if n.startswith("perfdoc.step")} == {f"perfdoc.step {n}" for n in (2, 3, 4)}
    assert (names["perfdoc.evaluation"], names["perfdoc.checkpoint save"]) == (1, 1)


def test_lightning(needs_torch: None, tmp_path: Path) -> None:
    names = trained(LIGHTNING, "lightning", tmp_path)
    assert {n for n in names if n.startswith("perfdoc.step")} == {"perfdoc.step 2", "perfdoc.step 3"}
    assert (names["perfdoc.forward"], names["perfdoc.backward"], names["perfdoc.optimizer"]) == (2, 2, 2)
    assert names["perfdoc.evaluation"] == 1
    assert names["perfdoc.data"] >= 1


def test_bridge_takes_the_callback_by_its_methods(
    needs_torch: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bridge's manager takes the methods of any object that have its events' names; its loop's order."""
    monkeypatch.setattr("perfdoc.profiling.own.megatron.name_passes", lambda: None)
    callback = BridgeCallback(steps=(11, 12), folder=tmp_path)
    optimizer = SimpleNamespace(step=lambda: "updated")
    context = SimpleNamespace(
        state=SimpleNamespace(train_state=SimpleNamespace(step=10)), model=[], optimizer=optimizer
    )
    callback.on_train_start(context)
    for number in (10, 11, 12):
        context.state.train_state.step = number
        callback.on_train_step_start(context)
        assert optimizer.step() == "updated"
        callback.on_train_step_end(context)
    callback.on_eval_start(context)
    callback.on_eval_end(context)
    callback.on_train_end(context)
    names = counted(names_in(tmp_path / "traces" / "rank0.json.gz"))
    assert (names["perfdoc.step 11"], names["perfdoc.optimizer"], names["perfdoc.step 12"]) == (1, 1, 0)


def test_what_a_trainer_says_calls_what_a_class_makes_of_it() -> None:
    """Both ends of a training and of what runs beside it, of a class that has its own."""
    said: list[str] = []

    class Follows(BridgeCallback):
        def ends(self) -> None:
            said.append("ends")

        def leaves(self) -> None:
            said.append("leaves")

        def step_ends(self) -> None:
            said.append("step ends")

    callback = Follows()
    for event in (callback.on_train_step_end, callback.on_eval_end, callback.on_train_end):
        event(SimpleNamespace(), anything=1)
    assert said == ["step ends", "leaves", "ends"]


@pytest.mark.parametrize(("steps", "folder"), [((1, 2), None), (None, "x"), ((3, 3), "x"), ((-1, 2), "x")])
def test_steps_and_folder_go_together(steps: tuple[int, int] | None, folder: str | None) -> None:
    with pytest.raises(ValueError, match="steps"):
        Loop(steps, folder)
