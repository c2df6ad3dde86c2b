"""Settings that guides name and a CPU can try: collections, profile windows, GEMM overlap, memory."""

from __future__ import annotations

import gc
import importlib.util
import pickle
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfdoc.profiling import memory
from perfdoc.profiling.memory import MemoryRecorder
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.trainer.config import resolve
from perfdoc.trainer.config.profiling import profiler_of, window_of
from perfdoc.trainer.layout import plan
from tests.megatron_core import import_core
from tests.trainer.launch import need_megatron
from tests.trainer.overrides import KERNELS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.mark.parametrize(
    ("overrides", "collections"),
    [
        (["manual_gc=true"], 2),
        (["manual_gc=true", "manual_gc_eval=false"], 0),
        (["manual_gc=true", "manual_gc_interval_val=2"], 4),
        (["manual_gc=true", "manual_gc_eval=false", "manual_gc_interval_val=3"], 1),
        (["manual_gc=false", "manual_gc_interval=0"], 0),
    ],
)
def test_garbage_is_collected_around_and_in_validation(
    overrides: list[str], collections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_megatron()
    import_core("megatron.core")
    from perfdoc.trainer import loop

    done: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append(1))
    for name in ("_set_mode", "_iterators"):
        monkeypatch.setattr(loop, name, lambda *given, **named: None)
    monkeypatch.setattr(loop, "_agree", lambda seen, stop: (seen[0] / seen[1], False))
    monkeypatch.setattr(
        loop, "run_schedule", lambda *given, **named: SimpleNamespace(loss_sum=6.0, tokens=2.0)
    )
    config = resolve("tiny", ["eval_iters=5", *overrides]).config
    run: Any = SimpleNamespace(
        config=config,
        model=[],
        corpus=SimpleNamespace(valid=None),
        layout=SimpleNamespace(num_microbatches=1),
        finished=7,
    )
    found = loop._evaluate(run)
    assert (found.loss, found.step) == (3.0, 7)
    assert len(done) == collections


@pytest.mark.parametrize(
    ("overrides", "options", "expected"),
    [
        ([], {}, (10, 3, None)),
        (["profile_step_start=20", "profile_step_end=22"], {}, (20, 2, None)),
        (["profile_step_start=20", "profile_step_end=22"], {"start": 5}, (5, 2, None)),
        (["profile_step_end=12", "profile_ranks=[0,3]"], {"steps": 7}, (10, 7, (0, 3))),
        (["profile_ranks=[0,3]"], {"ranks": frozenset({2})}, (10, 3, (2,))),
    ],
)
def test_the_profiled_steps_and_ranks(
    overrides: list[str], options: dict[str, Any], expected: tuple[int, int, tuple[int, ...] | None]
) -> None:
    window = window_of(resolve("tiny", overrides).config.profiling, **options)
    assert (window.start, window.steps, window.ranks) == expected


def test_a_window_that_ends_before_it_starts_and_the_profiler() -> None:
    config = resolve("tiny", ["profile_step_start=20", "profile_step_end=20"]).config.profiling
    with pytest.raises(ValueError, match="profile_step_end = 20"):
        window_of(config)
    assert profiler_of(config, None) == "auto"
    assert profiler_of(resolve("tiny", ["use_nsys_profiler=true"]).config.profiling, None) == "nsys"
    torch = resolve("tiny", ["use_pytorch_profiler=true"]).config.profiling
    assert (profiler_of(torch, None), profiler_of(torch, "none")) == ("torch", "none")


def test_gemms_get_the_fields_that_their_method_reads(tmp_path: Path) -> None:
    # PyTorch comes with it: not imported where every worker collects.
    from perfdoc.trainer.session import GEMMS, overlap_of_gemms

    base = ["tensor_model_parallel_size=2", "sequence_parallel=true", "tp_comm_overlap=true"]
    assert overlap_of_gemms(resolve("tiny", base).config) is None
    found = overlap_of_gemms(
        resolve("tiny", [*base, "tp_overlap_num_sm=4", "tp_overlap_num_splits=2"]).config
    )
    assert found is not None
    assert found["proj_fprop"] == {"method": "pipeline", "num_sm": 4, "num_splits": 2}
    assert found["qkv_dgrad"] == {"method": "bulk", "num_sm": 4}
    assert not set(found) & set(GEMMS["ring_exchange"])
    fp8 = overlap_of_gemms(resolve("tiny", [*base, "tp_overlap_fp8_buf=false"]).config)
    assert fp8 == {gemm: {"method": "pipeline", "fp8_buf": False} for gemm in GEMMS["pipeline"]}
    file = tmp_path / "overlap.yaml"
    file.write_text("qkv_fprop: {method: ring_exchange, aggregate: 1}\n")
    read = overlap_of_gemms(resolve("tiny", [*base, f"tp_comm_overlap_cfg={file}"]).config)
    assert read == {"qkv_fprop": {"method": "ring_exchange", "aggregate": 1}}
    for text, word in (
        ("qkv: {}", "qkv is not one of these GEMMs"),
        ("qkv_fprop: {method: x}", "method of"),
        ("[", "line"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=word):
            overlap_of_gemms(resolve("tiny", [*base, f"tp_comm_overlap_cfg={file}"]).config)


@pytest.mark.parametrize("modes", [None, SimpleNamespace(FP8="fp8", NONE="none")])
def test_user_buffers_are_allocated_before_the_model(modes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch comes with it: not imported where every worker collects.
    from perfdoc.trainer.session import start_user_buffers

    # 128 tokens x 2 sequences / CP 2 = 128 rows of 128: what one GEMM of this rank reads.
    given: list[dict[str, Any]] = []
    base: Any = types.ModuleType("transformer_engine.pytorch.module.base")
    base.initialize_ub = lambda **arguments: given.append(arguments)
    if modes is not None:
        base.UserBufferQuantizationMode = modes
    for name in ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.module"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    overrides = [
        *["tensor_model_parallel_size=2", "sequence_parallel=true", "context_parallel_size=2"],
        *["data_parallel_size=null", "params_dtype=bf16", "fp8=hybrid", "cp_comm_type=p2p"],
        *["seq_length=128", "micro_batch_size=2"],
    ]
    config = resolve("tiny", overrides).config
    layout = plan(config, 4, "cuda", KERNELS)
    start_user_buffers(config, layout)
    assert given == []
    start_user_buffers(resolve("tiny", [*overrides, "tp_comm_overlap=true"]).config, layout)
    asked = {"use_fp8": True} if modes is None else {"quantization_modes": ["fp8"]}
    assert given == [
        {"shape": [128, 128], "tp_size": 2, "ub_cfgs": None, "bootstrap_backend": "nccl", **asked}
    ]


class FakeMemory:
    """torch.cuda.memory, as far as the recorder asks for it."""

    def __init__(self) -> None:
        self.history: list[object] = []

    def _record_memory_history(self, **given: Any) -> None:
        self.history.append(given["enabled"])

    def __getattr__(self, name: str) -> Any:
        return lambda *given: {"segments": []} if name == "_snapshot" else 1


@pytest.mark.parametrize("history", [True, False])
def test_memory_history_and_the_copy_of_its_snapshot(
    history: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMemory()
    monkeypatch.setattr(memory, "_cuda_memory", lambda: fake)
    monkeypatch.setattr(MemoryRecorder, "_watch_out_of_memory", lambda self: None)
    monkeypatch.setattr(memory, "sample_memory", lambda event, step, cuda: memory_sample(event, step))
    run = RunDirectory.create(tmp_path / "run")
    copy = tmp_path / "elsewhere" / "snapshot.pickle"
    recorder = MemoryRecorder(run, 3, "cuda", history=history, copy=str(copy))
    recorder.start(5)
    recorder.stop()
    assert fake.history == []  # its stacks would be a cost of the profiled steps
    recorder.start_history()
    recorder.stop_history()
    assert fake.history == (["all", None] if history else [])
    assert run.memory_path(3, "pickle").exists() is history
    target = copy.with_name("snapshot.rank3.pickle")
    assert target.exists() is history
    if history:
        assert pickle.loads(target.read_bytes()) == {"segments": []}


def memory_sample(event: Any, step: int) -> Any:
    return memory.MemorySample(
        event=event,
        step=step,
        time_ns=1,
        **dict.fromkeys(("resident_bytes", "peak_resident_bytes", "heap_used_bytes", "heap_free_bytes")),
        python_blocks=1,
    )
