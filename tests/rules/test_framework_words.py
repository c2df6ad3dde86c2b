"""Changes are named in the words of the framework that a capture shows, never in those of another."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from perfdoc.analyzers.device.frameworks import Program, program_of
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.job import measure_job
from perfdoc.analyzers.measure import CaptureMeasurement, measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.load import catalogue
from perfdoc.reports.text import render_text
from perfdoc.results import Diagnosis
from perfdoc.results.headline import Framework
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.job_words import in_words_of
from perfdoc.rules.engine.own_words import in_own_words
from perfdoc.rules.facts.framework import framework_of_job, is_verls_fsdp
from perfdoc.simulator.replay.gains import no_gains
from perfdoc.simulator.replay.proposals import change_title
from perfdoc.simulator.replay.unedited import replay_and_keep
from perfdoc.traces.load import read_trace
from tests.analyzers.tiny import GEMM, trace_of
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import predicting, with_predictions

US = 1_000


def launch_bound(name: str) -> TimelineBuilder:
    """3 steps of 30 short kernels, one every 100 us, in ranges of a name."""
    builder, thread, device = one_gpu()
    for i in range(3):
        begin = 3_000 * i * US
        thread.range(f"step {i}", begin, begin + 3_000 * US)
        thread.range(name, begin + 10, begin + 2_900 * US)
        for k in range(30):
            at = begin + (100 * k + 1) * US
            device.kernel(GEMM, at + 5 * US, at + 15 * US, launch=(thread, at, at + 3 * US))
    return builder


def diagnosed(folder: Path, name: str, configuration: Configuration | None = None) -> Diagnosis:
    folder.mkdir(exist_ok=True)
    path = write_nsys_sqlite(launch_bound(name).build(), folder / "job.sqlite")
    capture = measure_capture(path, WindowRequest(), also=replay_and_keep)
    return diagnose([capture], configuration=configuration)


def title(found: Diagnosis, key: str = "without_launches") -> str:
    return next(p.change for p in found.analyses.gains.predictions if p.key == key)


@pytest.mark.parametrize(
    ("name", "framework", "words"),
    [
        ("megatron.core.transformer.forward", "megatron", "cuda_graph_impl"),
        ("perfdoc.forward layer=0", "megatron", "cuda_graph_impl"),
        ("aten::mm", "pytorch", "torch.cuda.CUDAGraph"),
        ("vllm.model_executor", "vllm", "enforce_eager"),
        ("forward", "", "CUDA graphs"),
    ],
)
def test_words_of_what_was_seen(tmp_path: Path, name: str, framework: str, words: str) -> None:
    found = diagnosed(tmp_path, name)
    assert found.job is not None
    assert found.job.framework == framework
    assert words in title(found)
    if framework != "megatron":
        screen = render_text(found).partition("Where the time goes")[0]
        assert "CUDA graphs" in screen
        assert [knob for knob in catalogue() if "_" in knob and knob in screen] == []


def test_a_server_is_not_told_to_train_otherwise(tmp_path: Path) -> None:
    found = {
        name: next(r for r in diagnosed(tmp_path / name, f"{name}.x").rules if r.code == "PD201").remedy
        for name in ("vllm", "torch")
    }
    assert "larger batch" in found["torch"]
    assert ("enforce_eager" in found["vllm"], "micro-batch" in found["vllm"]) == (True, False)


@pytest.mark.parametrize("serves", [True, False])
def test_a_server_that_launches_graphs_is_not_told_to(tmp_path: Path, serves: bool) -> None:
    """Twelve small launches of an iteration, 50 us apart, then one graph of 1,400 us: nearly all of the
    kernels' time is in graphs, and their launches are few."""
    builder, thread, device = one_gpu()
    name = "[Executor] _forward_step {}: 0 ctx reqs, 64 gen reqs" if serves else "step {}"
    for i in range(10):
        at = 1_000_000 + 2_100_000 * i
        for k in range(12):
            call = at + 50_000 * k
            device.kernel(GEMM, call + 8_000, call + 11_000, launch=(thread, call, call + 5_000))
        device.graph_launch(1, at + 620_000, at + 2_020_000, launch=(thread, at + 600_000, at + 610_000))
        thread.synchronize("device", at + 615_000, at + 2_030_000)
        thread.range(name.format(i), at, at + 2_090_000)
    path = write_nsys_sqlite(builder.build(), tmp_path / "job.sqlite")
    rules = diagnose([measure_capture(path, WindowRequest())]).rules
    found = next(r for r in rules if r.code == "PD201")
    assert found.state == "fires"
    assert ("scheduling" in found.remedy) == serves


@pytest.mark.parametrize(
    ("dialect", "values", "shown", "framework"),
    [
        # Environment variables are anybody's: the capture decides.
        ("env", {"nccl_debug": "WARN"}, "vllm", "vllm"),
        ("env", {"nccl_debug": "WARN"}, "pytorch", "pytorch"),
        ("env", {}, "", ""),
        *((d, {}, "vllm", "megatron") for d in ("megatron_core", "megatron_lm", "perfdoc")),
        # Megatron-DeepSpeed, and Accelerate that runs Megatron.
        *((d, {}, "megatron", "megatron") for d in ("deepspeed", "accelerate", "torchtitan")),
        *((d, {}, "", "pytorch") for d in ("deepspeed", "accelerate", "torchtitan")),
        ("accelerate", {"accelerate_distributed_type": "MEGATRON_LM"}, "pytorch", "megatron"),
        ("accelerate", {"accelerate_distributed_type": "FSDP"}, "pytorch", "pytorch"),
        # verl: its engine's name; without it, whose settings are made.
        ("verl", {"verl_strategy": "megatron", "verl_param_offload": True}, "", "megatron"),
        *(("verl", {"verl_strategy": s}, "", "pytorch") for s in ("fsdp", "fsdp2")),
        ("verl", {"verl_param_offload": True}, "", "pytorch"),
        ("verl", {"verl_fsdp_size": 8}, "", "pytorch"),
        ("verl", {"verl_param_offload": True, "tensor_model_parallel_size": 2}, "", "megatron"),
        ("verl", {"verl_strategy": "veomni"}, "", "pytorch"),
        # Neither section: the captures say it, but for vLLM, which generates the samples.
        *(("verl", {"rollout_n": 8}, shown, shown) for shown in ("megatron", "")),
        ("verl", {"rollout_n": 8}, "vllm", ""),
        # PyTorch's operators run in Megatron too, whose ranges a capture may lack.
        ("verl", {"rollout_n": 8}, "pytorch", ""),
        ("verl", {"verl_param_offload": True}, "pytorch", "pytorch"),
    ],
)
def test_whose_job_it_is(
    dialect: Dialect, values: dict[str, Value], shown: Framework, framework: str
) -> None:
    capture = SimpleNamespace(framework=shown)
    given = Configuration(values=values, dialect=dialect)
    assert framework_of_job([cast(CaptureMeasurement, capture)], given) == framework


def test_a_job_of_megatron_in_verl_is_not_told_to_prefetch_as_fsdp_does() -> None:
    case = Case(captures=[], job=measure_job([]), gains=no_gains("", ""))
    for values in ({"verl_strategy": "megatron"}, {"rollout_n": 8}):
        assert not is_verls_fsdp(Configuration(values=values, dialect="verl"))
        told = replace(case, configuration=Configuration(values=values, dialect="verl"))
        (piece,) = in_own_words(told, advise(knob="overlap_param_gather", to=True, why="x"), True)
        assert not [words for words in piece.dialects.values() if "forward_prefetch" in words]


@pytest.mark.parametrize(
    ("dialect", "values", "key", "words"),
    [
        ("deepspeed", {"zero_stage": 1}, "buckets_x4", "(reduce_bucket_size)"),
        ("deepspeed", {"zero_stage": 1}, "overlapped_dp", "(overlap_comm)"),
        # Stage 0, set or not, reduces without them.
        ("deepspeed", {}, "overlapped_dp", ""),
        ("deepspeed", {"zero_stage": 0}, "buckets_x0.25", ""),
        ("deepspeed", {}, "dp_half_bytes", "(communication_data_type)"),
        ("accelerate", {"accelerate_distributed_type": "MULTI_GPU"}, "buckets_x4", "(DDP's bucket_cap_mb)"),
        ("accelerate", {"accelerate_distributed_type": "FSDP"}, "buckets_x4", ""),
        ("torchtitan", {}, "without_gc", "(training.gc_freq)"),
        # torch.compile of blocks captures no graph.
        ("torchtitan", {}, "without_launches", ""),
        ("verl", {"verl_strategy": "veomni"}, "without_recompute", "(torch.utils.checkpoint)"),
        ("accelerate", {"accelerate_distributed_type": "DEEPSPEED"}, "fp8_gemm", "(mixed_precision)"),
    ],
)
def test_predictions_name_settings_that_the_job_reads(
    dialect: Dialect, values: dict[str, Value], key: str, words: str
) -> None:
    case = predicting(Case(captures=[], job=measure_job([]), gains=no_gains("", "")), **{key: (1, 1, 1)})
    (plain,) = case.gains.predictions
    gains = with_predictions(case, [replace(plain, change=change_title(key))]).gains
    given = Configuration(values=values, dialect=dialect)
    (said,) = in_words_of("pytorch", gains, given).analysis.predictions
    assert said.change == change_title(key).partition(" (")[0] + (f" {words}" if words else "")


@pytest.mark.parametrize(
    ("marks", "sharded", "key", "words"),
    [
        ((), True, "dp_half_bytes", "(reduce_dtype of FSDP's mixed precision)"),
        ((), True, "buckets_x4", "(layers in a unit of fully_shard)"),
        ((), False, "dp_half_bytes", "(DDP's bf16_compress_hook)"),
        (("deepspeed",), True, "dp_half_bytes", "(communication_data_type)"),
    ],
)
def test_predictions_of_what_captures_show_to_shard(
    marks: tuple[str, ...], sharded: bool, key: str, words: str
) -> None:
    """DDP's buckets and hooks are none of FSDP or ZeRO, whose ranks gather weights."""
    case = predicting(Case(captures=[], job=measure_job([]), gains=no_gains("", "")), **{key: (1, 1, 1)})
    (plain,) = case.gains.predictions
    gains = with_predictions(case, [replace(plain, change=change_title(key))]).gains
    program = Program(vendor="nvidia", marks=frozenset(marks), optimizers=frozenset())
    (said,) = in_words_of("pytorch", gains, Configuration(), program, sharded=sharded).analysis.predictions
    assert said.change.endswith(words)


def test_a_group_of_megatrons_is_seen(tmp_path: Path) -> None:
    trace = trace_of(launch_bound("forward"), tmp_path)
    for extra, expected in (("TENSOR_MODEL_PARALLEL_GROUP", "megatron"), ("MY_GROUP", "")):
        assert program_of(replace(trace, strings=[*trace.strings, extra])).framework == expected


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("kineto/resnet50_num_workers_0_v100.pt.trace.json.gz", "pytorch"),
        ("kineto/vllm_moe_tp8_b200_rank0.json.gz", "vllm"),
        ("nsys/gpt_small_full_step_a100.sqlite", "pytorch"),
    ],
)
def test_real_captures(shared_traces: Path, name: str, framework: str) -> None:
    assert program_of(read_trace(shared_traces / name)).framework == framework
