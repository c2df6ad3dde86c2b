"""What a rank shows of its steps, read back from what the services' own packages wrote.

W&B and MLflow are in no extra of ours: `pip install wandb mlflow-skinny` beside an installed perfdoc.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from runpy import run_module
from threading import Event, Thread, Timer, current_thread
from types import SimpleNamespace
from typing import Any

import pytest

from perfdoc.profiling.logs import Began, StepRecord
from perfdoc.profiling.own import sinks
from perfdoc.profiling.own.exposition import exposition, metrics
from perfdoc.profiling.own.megatron import BridgeCallback
from perfdoc.profiling.own.sinks import Said, chosen, guarded, opened
from perfdoc.profiling.own.telemetry import Telemetry, of_report

MS = 1_000_000
LOOP = """
import sys, time
from perfdoc.profiling import record, steps
record(sys.argv[1], log=sys.argv[2].split() if len(sys.argv) > 2 else None)
for batch in steps([0] * 61):
    time.sleep(0.002)
"""


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (docs/watch.md)")


def row(step: int, ms: float = 100, **more: Any) -> StepRecord:
    return StepRecord(step=step, start_ns=10**18, duration_ns=round(ms * MS), **more)


def said_of(rows: list[StepRecord], tmp_path: Path, **more: Any) -> list[Said]:
    """What a rank that shows nowhere else says of some rows."""
    found: list[Said] = []
    telemetry = Telemetry(services=None, of_framework=lambda: [found.append], every=4, **more)
    telemetry.begins(tmp_path)
    for one in rows:
        telemetry.add(one)
    return found


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PERFDOC_LOG", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    # TensorBoard's files are another test's.
    monkeypatch.setattr("perfdoc.profiling.own.telemetry.opened", lambda services, run: [])


def test_a_point_is_the_mean_of_its_steps(tmp_path: Path) -> None:
    model = {"flops_per_step": 6e9, "peak_flops_per_second": 1e12}
    rows = [row(0, 900, began=Began(world_size=1, device="cpu", **model))]
    rows += [
        row(n, ms, wait_ns=10 * MS, data_ns=n * MS, rank_tokens=50, garbage_ns=0, resident_bytes=n)
        for n, ms in ((1, 80), (2, 120), (3, 100))
    ]
    rows.append(row(4, 7_000, profiled=True))
    (point,) = said_of(rows, tmp_path)
    # The first step and the profiled one do not count: (80 + 120 + 100) / 3.
    assert point.step == 4
    assert point.figures == pytest.approx(
        {
            "step_seconds": 0.1,
            "wait_seconds": 0.01,
            "data_wait_seconds": 0.002,
            "garbage_collection_seconds": 0,
            "tokens_per_second": 500,
            "mfu_ratio": 0.06,
            "memory_bytes": 3,
        }
    )
    assert set(point.figures) <= set(metrics())


def test_tokens_of_the_job_are_told_where_ranks_are_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "8")
    rows = [row(n, rank_tokens=50) for n in range(1, 5)]

    def point_of(role: dict[str, int], **model: float) -> Said:
        began = Began(world_size=8, device="cpu", role=role, peak_flops_per_second=1e12, **model)
        (point,) = said_of([row(0, began=began), *rows], tmp_path)
        return point

    for role, name, expected in (({"dp": 0}, "tokens_per_second", 4000), ({}, "rank_tokens_per_second", 500)):
        point = point_of(role, flops_per_step=6e9)
        told = {key: value for key, value in point.figures.items() if "tokens" in key}
        assert told == {name: pytest.approx(expected)}
        assert point.figures["mfu_ratio"] == pytest.approx(0.06 / 8)
    # More than all of the peak is no share of it: the FLOPs or the peak are of something else.
    assert "mfu_ratio" not in point_of({"dp": 0}, flops_per_step=1e15).figures
    # By the token: 4,000 a second of 8 devices. Without the job's tokens nothing says it.
    assert point_of({"dp": 0}, flops_per_token=1e9).figures["mfu_ratio"] == pytest.approx(0.5)
    assert "mfu_ratio" not in point_of({}, flops_per_token=1e9).figures


def test_a_profiled_window_is_told_by_its_parts(tmp_path: Path) -> None:
    def rank(dp: int, host: int, steps: int, kind: str = "steps") -> dict[str, Any]:
        ledger = {
            "compute": 9,
            "exposed_comm": {"dp": dp, "tp": 0},
            "exposed_memcpy": 1,
            "idle": {"host": host},
        }
        return {"window": {"kind": kind, "steps": steps}, "ledger_ns": ledger, "more": 1}

    ranks = [rank(20 * MS, 6 * MS, 2), rank(40 * MS, 2 * MS, 2), rank(9 * MS, 9 * MS, 0, "capture")]
    told = {"ranks": ranks, "verdict": "DP is exposed.", "why": "Small buckets."}
    (tmp_path / "diagnosis.json").write_text(json.dumps(told))
    (tmp_path / "report.html").write_text("<html>")
    said = of_report(tmp_path, 7)
    # Of a step, the mean over two ranks with steps: (20 / 2 + 40 / 2) / 2 and (6 / 2 + 2 / 2) / 2 ms.
    assert said.figures == pytest.approx(
        {"exposed_communication_seconds/dp": 0.015, "idle_seconds/host": 0.002}
    )
    assert (said.step, said.kind, said.text.splitlines()[:2]) == (
        7,
        "report",
        ["DP is exposed.", "Small buckets."],
    )


def test_a_service_that_fails_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    def send(said: Said) -> None:
        raise ConnectionError(f"no route at {said.step}")

    (sink,) = guarded("wandb", lambda: send)
    for step in range(3):
        sink(Said(step=step))
    assert capsys.readouterr().err.count("perfdoc: wandb:") == 1
    assert guarded("mlflow", lambda: 1 / 0) == []
    assert guarded("mlflow", lambda: None) == []


@pytest.mark.parametrize("word", ["tensor", "prometheus", "wandb=x", "prometheus="])
def test_another_service_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="figures go to"):
        chosen([word])


def test_services_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFDOC_LOG", "mlflow,prometheus=/x/y=z.prom")
    assert chosen(None) == ["mlflow", "prometheus=/x/y=z.prom"]
    assert chosen([]) == []


PARSED = re.compile(r'^(perfdoc_[a-z_]+)\{run="((?:[^"\\]|\\.)*)"(?:,([a-z]+)="([a-z_]+)")?\} (\S+)$')


def test_the_text_for_prometheus_holds_what_was_said() -> None:
    figures = {"step": 12.0, "step_seconds": 0.123456789, "idle_seconds/host": 1e-7, "idle_seconds/gc": 2.0}
    text = exposition(figures, 'a "b"\\\n')
    found = {
        m[1] + (f"/{m[4]}" if m[4] else ""): float(m[5]) for m in map(PARSED.match, text.splitlines()) if m
    }
    assert found == {f"perfdoc_{name}": value for name, value in figures.items()}
    lines = text.splitlines()
    helped = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert helped == [line.split()[2] for line in lines if line == f"# TYPE {line.split()[2]} gauge"]
    assert len(helped) == len(set(helped)) == 3
    needs("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families as families

    samples = [sample for family in families(text) for sample in family.samples]
    assert {s.labels["run"] for s in samples} == {'a "b"\\\n'}
    assert {s.labels.get("cause") for s in samples} == {None, "host", "gc"}
    assert sum(s.value for s in samples) == pytest.approx(sum(figures.values()))


def test_a_scraped_file_is_whole_and_keeps_what_was_said(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    target = tmp_path / "node" / "perfdoc.prom"
    (sink,) = opened([f"prometheus={target}"], tmp_path / "run")
    sink(Said(step=5, figures={"step_seconds": 1.0}))
    assert 'perfdoc_step_seconds{run="run"} 1\n' in target.read_text()
    sink(Said(step=6, figures={"idle_seconds/host": 0.5}))  # at once: the file is not written again yet
    assert "idle" not in target.read_text()
    sink(Said(step=6, last=True))
    told = target.read_text()
    assert 'perfdoc_step_seconds{run="run"} 1\n' in told
    assert 'perfdoc_idle_seconds{run="run",cause="host"} 0.5\n' in told
    # Of the step whose time it is, not of the window that was told later.
    assert 'perfdoc_step{run="run"} 5\n' in told
    assert re.search(r'perfdoc_step_timestamp_seconds{run="run"} \d{10}', told)
    assert [path.name for path in target.parent.iterdir()] == ["perfdoc.prom"]
    assert target.stat().st_mode & 0o444 == 0o444 & ~_umask()


def _umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


def trained(program: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**{k: v for k, v in os.environ.items() if k != "PERFDOC_LOG"}, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def events(folder: Path) -> Any:
    """TensorBoard's own reading of its files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_the_run_directory(tmp_path: Path) -> None:
    needs("torch", "tensorboard")
    trained(LOOP, str(tmp_path / "mine"))
    found = events(tmp_path / "mine" / "tensorboard")
    points = found.Scalars("perfdoc/step_seconds")
    assert [point.step for point in points] == [10, 20, 30, 40, 50, 60]
    assert all(0.002 <= point.value < 1 for point in points)
    (verdict,) = found.Tensors("perfdoc/verdict/text_summary")
    assert "steps 0 to 60" in verdict.tensor_proto.string_val[0].decode()


def test_nothing_is_shown_where_nothing_is_asked_for(tmp_path: Path) -> None:
    trained(LOOP, str(tmp_path / "mine"), "", PERFDOC_LOG="")
    assert not (tmp_path / "mine" / "tensorboard").exists()
    assert (tmp_path / "mine" / "ended").exists()


def test_mlflow_holds_figures_and_verdict(tmp_path: Path) -> None:
    needs("mlflow")
    store = f"file://{tmp_path}/store"
    said = trained(
        LOOP, str(tmp_path / "mine"), "mlflow", MLFLOW_TRACKING_URI=store, MLFLOW_ALLOW_FILE_STORE="true"
    )
    assert "perfdoc: mlflow" not in said
    (figure,) = (tmp_path / "store").glob("*/*/metrics/perfdoc/step_seconds")
    points = [line.split() for line in figure.read_text().splitlines()]
    assert [int(step) for _, _, step in points] == [10, 20, 30, 40, 50, 60]
    (verdict,) = (tmp_path / "store").glob("*/*/artifacts/perfdoc/verdict.txt")
    assert "steps 0 to 60" in verdict.read_text()
    (run,) = (tmp_path / "store").glob("*/*/meta.yaml")
    assert "status: 3" in run.read_text()  # FINISHED


class Server:
    """MLflow's client, whose calls take until the server answers."""

    def __init__(self) -> None:
        self.answers, self.told, self.threads = Event(), list[Any](), set[Thread]()

    def __getattr__(self, name: str) -> Any:
        def call(run_id: str, *given: Any) -> None:
            self.threads.add(current_thread())
            assert self.answers.wait(60)
            self.told.append((name, [m.step for m in given[0]]) if name == "log_batch" else (name, *given))

        return call


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    def metric(name: str, value: float, time_ms: int, step: int) -> Any:
        return SimpleNamespace(step=step)

    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Metric=metric))  # type: ignore[arg-type]
    return Server()


def test_mlflow_is_told_all_in_order_beside_the_training(server: Server, tmp_path: Path) -> None:
    (sink,) = guarded("mlflow", partial(sinks._mlflow, own=True), server, "run")
    for step in range(1, 2_001):
        sink(Said(step=step, figures={"step_seconds": 1.0}))
    sink(Said(step=2_000, text="slow", page=tmp_path / "report.html"))
    assert server.told == []
    Timer(0.1, server.answers.set).start()
    sink(Said(step=2_001, figures={"step_seconds": 1.0}, last=True))
    # What the server takes in one call is kept for it: the newest thousand.
    assert server.told == [
        ("log_batch", [1]),
        ("log_batch", [*range(1_002, 2_002)]),
        ("log_text", "slow", "perfdoc/verdict.txt"),
        ("log_artifact", str(tmp_path / "report.html"), "perfdoc"),
        ("set_terminated",),
    ]
    assert current_thread() not in server.threads


@pytest.mark.parametrize("busy", [False, True])
def test_the_end_waits_for_mlflow_so_long(
    server: Server, busy: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sinks, "_LEAST_S", 0.2)
    (sink,) = guarded("mlflow", partial(sinks._mlflow, own=True), server, "run")
    if busy:
        sink(Said(step=1, text="slow"))
    began_s = time.monotonic()
    sink(Said(step=2, text="slow", last=True))
    assert 0.2 <= time.monotonic() - began_s < 10
    told = "perfdoc: mlflow: no answer in 0.2 s; nothing more is shown there\n"
    assert capsys.readouterr().err == told
    server.answers.set()


READS_WANDB = """
import json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record

# LevelDB's log format behind seven bytes: pieces of records with a header of seven, in blocks of 32 KiB.
data, at, whole, steps, summary = open(sys.argv[1], "rb").read(), 7, b"", [], {}
while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    _, length, kind = struct.unpack("<IHB", data[at : at + 7])
    whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
    if kind in (1, 4):
        record = Record.FromString(whole)
        history = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
        if "perfdoc/step_seconds" in history:
            steps.append(json.loads(history["perfdoc/step"]))
        summary |= {"/".join(i.nested_key) or i.key: i.value_json for i in record.summary.update}
        whole = b""
print(json.dumps([steps, summary]))
"""


def test_wandb_holds_figures_and_verdict_offline(tmp_path: Path) -> None:
    needs("wandb")
    said = trained(LOOP, str(tmp_path / "mine"), "wandb", WANDB_MODE="offline", WANDB_SILENT="true")
    assert "perfdoc: wandb" not in said
    (written,) = (tmp_path / "mine" / "wandb").glob("offline-run-*/*.wandb")
    told = subprocess.run(
        [sys.executable, "-c", READS_WANDB, str(written)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    steps, summary = json.loads(told.stdout)
    assert steps == [10, 20, 30, 40, 50, 60]
    assert "steps 0 to 60" in json.loads(summary["perfdoc/verdict"])


class Trainer:
    def log(self, logs: dict[str, float]) -> dict[str, float]:
        return logs


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_the_log_of_a_trainer_is_as_others_left_it(
    before: bool, later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=object))  # type: ignore[arg-type]
    module, trainer = run_module("perfdoc.profiling.own.hugging_face"), Trainer()

    def wrapped(name: str) -> Any:
        inner = trainer.log
        vars(trainer)["log"] = lambda logs: {**inner(logs), name: 1}
        return vars(trainer)["log"]

    mine = wrapped("mine") if before else None
    send = module["_through_log"](trainer)
    theirs = wrapped("theirs") if later else None
    others = {name: 1 for name, there in (("mine", before), ("theirs", later)) if there}
    send(Said(step=1, figures={"step_seconds": 2.0}))
    assert trainer.log({"loss": 3}) == {"loss": 3, "perfdoc/step_seconds": 2.0, **others}
    send(Said(step=2, figures={"step_seconds": 2.0}, last=True))
    assert trainer.log({"loss": 3}) == {"loss": 3, **others}
    assert vars(trainer).get("log") is (theirs or mine)


HUGGING_FACE = """
import json, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from perfdoc.profiling import HuggingFaceCallback

config = LlamaConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
tokens = torch.randint(0, 64, (8,))
data = [{"input_ids": tokens, "labels": tokens}] * 64
arguments = TrainingArguments(
    output_dir=sys.argv[1] + "/out", max_steps=16, per_device_train_batch_size=2, logging_steps=4,
    report_to=["tensorboard"], use_cpu=True, disable_tqdm=True, save_strategy="no")
trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=data,
        callbacks=[HuggingFaceCallback(steps=(6, 8), folder=sys.argv[1], record=sys.argv[1])])
trainer.train()
assert "log" not in vars(trainer)
json.dump(trainer.state.log_history, open(sys.argv[1] + "/history.json", "w"))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_hugging_face_logs_them_with_the_loss(tmp_path: Path) -> None:
    needs("transformers", "tensorboard", "torch")
    trained(HUGGING_FACE, str(tmp_path), TENSORBOARD_LOGGING_DIR=str(tmp_path / "theirs"))
    history = json.loads((tmp_path / "history.json").read_text())
    with_figures = [point["step"] for point in history if "perfdoc/step_seconds" in point]
    assert with_figures == [8, 12, 16]  # the first step loads, so that the first four are not whole at 4
    theirs = events(tmp_path / "theirs")
    assert [p.step for p in theirs.Scalars("train/perfdoc/tokens_per_second")] == [8, 12, 16]
    ours = events(tmp_path / "tensorboard")
    assert ours.Scalars("perfdoc/idle_seconds/host")
    (report,) = ours.Tensors("perfdoc/report/text_summary")
    assert str(tmp_path / "report") in report.tensor_proto.string_val[0].decode()
    assert (tmp_path / "report" / "report.html").is_file()


LIGHTNING = """
import sys, torch
import lightning.pytorch as pl
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.utils.data import DataLoader
from perfdoc.profiling import LightningCallback

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

folder = sys.argv[1]
pl.Trainer(accelerator="cpu", max_epochs=1, log_every_n_steps=5, enable_checkpointing=False,
           logger=[CSVLogger(folder, name="csv"), TensorBoardLogger(folder, name="theirs")],
           enable_progress_bar=False, enable_model_summary=False,
           callbacks=[LightningCallback(record=folder)]).fit(
    Model(), DataLoader(torch.ones(240, 8), batch_size=4))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightnings_own_loggers_hold_them(tmp_path: Path) -> None:
    needs("lightning", "tensorboard", "torch")
    trained(LIGHTNING, str(tmp_path))
    (csv,) = (tmp_path / "csv").glob("*/metrics.csv")
    assert "perfdoc/step_seconds" in csv.read_text().splitlines()[0]
    (theirs,) = (tmp_path / "theirs").iterdir()
    found = events(theirs)
    assert [point.step for point in found.Scalars("perfdoc/step_seconds")][:3] == [6, 11, 16]
    (verdict,) = found.Tensors("perfdoc/verdict/text_summary")
    assert "steps 0 to 59" in verdict.tensor_proto.string_val[0].decode()


@pytest.mark.filterwarnings("ignore")
def test_bridge_s_writer_holds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the rank that has it; its loop's order, on a stand-in of the state, with a real writer."""
    needs("torch", "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    from perfdoc.profiling.own import recording

    monkeypatch.setattr("perfdoc.profiling.own.megatron.name_passes", lambda: None)
    state = SimpleNamespace(
        train_state=SimpleNamespace(step=0), tensorboard_logger=SummaryWriter(tmp_path / "tb")
    )
    context = SimpleNamespace(state=state, model=[], optimizer=SimpleNamespace(step=lambda: None))
    callback = BridgeCallback(record=tmp_path / "run")
    callback.on_train_start(context)
    try:
        for step in range(21):
            state.train_state.step = step
            callback.on_train_step_start(context)
            callback.on_train_step_end(context)
        callback.on_train_end(context)
    finally:
        recording.stop()
    state.tensorboard_logger.close()
    assert [p.step for p in events(tmp_path / "tb").Scalars("perfdoc/step_seconds")] == [10, 20]


def test_what_fails_while_it_is_shown_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No process can be started: told once, and every step is written to its end."""

    def refuses(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("perfdoc.profiling.own.telemetry.VERDICT_EVERY_S", 0)
    monkeypatch.setattr(subprocess, "Popen", refuses)
    said: list[Said] = []
    telemetry = Telemetry(services=None, of_framework=lambda: [said.append], every=4)
    telemetry.begins(tmp_path)
    for n in range(12):
        telemetry.add(row(n))
    telemetry.ends()
    assert [one.step for one in said] == [3]
    assert capsys.readouterr().err.count("Cannot allocate memory") == 1


@pytest.mark.parametrize(("rank", "commands"), [("0", ["watch"]), ("1", [])])
def test_rank_0_alone_starts_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, commands: list[str]
) -> None:
    started: list[str] = []
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("perfdoc.profiling.own.telemetry.VERDICT_EVERY_S", 0)
    monkeypatch.setattr(Telemetry, "_passes_on", lambda *_: True)

    def starts(words: list[str], **_: Any) -> None:
        started.append(words[words.index("perfdoc") + 1])

    monkeypatch.setattr(subprocess, "Popen", starts)
    said_of([row(n) for n in range(4)], tmp_path)
    assert started == commands


def test_a_forked_child_ends_no_recording_of_its_parent(tmp_path: Path) -> None:
    program = """
import os, sys, pathlib
from perfdoc.profiling import record, steps
record(sys.argv[1], log=())
for n in steps(range(8)):
    if n == 3:
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        print(pathlib.Path(sys.argv[1], "ended").exists())
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["False"]), done.stderr
    assert len((tmp_path / "steps" / "rank0.jsonl").read_text().splitlines()) == 8
    assert (tmp_path / "ended").exists()


def test_a_word_of_the_environment_that_is_no_service_is_told(tmp_path: Path) -> None:
    program = "from perfdoc.profiling import steps\nprint(len([*steps(range(3))]))"
    environment = {**os.environ, "PERFDOC_RECORD": str(tmp_path), "PERFDOC_LOG": "tensorbord, wandb"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "3\n")
    assert "tensorbord" in done.stderr
