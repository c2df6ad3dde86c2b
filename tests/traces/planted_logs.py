"""Logs as five trainers print them, of steps of given times: head, what ran, and a line a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

Job = Mapping[str, object]
JOB: Job = {"seq": 4096, "tp": 2, "batch": 128, "layers": 32, "dtype": "bf16", "gpus": 16}
"""What ran; a test changes one of them."""
START = datetime(2026, 2, 24, 19, 46, 17, 508_000)


def megatron(times_s: Sequence[float], **changed: object) -> str:
    """Megatron-LM: arguments, then steps by their last rank."""
    job = {**JOB, **changed}
    bf16 = job["dtype"] == "bf16"
    listed = {
        **{"bf16": bf16, "fp16": not bf16, "fp8": None, "fp8_recipe": "delayed"},
        **{"data_parallel_size": 8, "global_batch_size": job["batch"], "hidden_size": 4096},
        **{"micro_batch_size": 1, "num_layers": job["layers"], "seq_length": job["seq"]},
        **{"tensor_model_parallel_size": job["tp"], "world_size": job["gpus"]},
    }
    head = [
        f"using world size: {job['gpus']}, data-parallel size: 8, context-parallel size: 1, "
        f"tensor-model-parallel size: {job['tp']}, pipeline-model-parallel size: 1",
        "------------------------ arguments ------------------------",
        *(f"  {key} {'.' * (48 - len(key))} {value}" for key, value in listed.items()),
        "-------------------- end of arguments ---------------------",
        " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 4016128000",
    ]
    now, lines = START, []
    for i, seconds in enumerate(times_s, 1):
        now += timedelta(seconds=seconds)
        batch = job["batch"]
        lines.append(
            f" [{now:%Y-%m-%d %H:%M:%S}] iteration {i:8d}/{len(times_s):8d} | consumed samples: "
            f"{i * int(str(batch)):12d} | elapsed time per iteration (ms): {1e3 * seconds:.1f} | throughput "
            f"per GPU (TFLOP/s/GPU): {400 / seconds:.1f} | learning rate: 1.0E-04 | global batch size: "
            f"{batch!s:>5} | lm loss: 1.0E+00 | number of nan iterations:   0 |"
        )
    memory = (
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 10770.30 | max allocated: 15754.80 | "
        "reserved: 20000.00 | max reserved: 20480.00"
    )
    return "\n".join([*head, lines[0], memory, *lines[1:]]) + "\n"


def bridge(times_s: Sequence[float], **changed: object) -> str:
    """Megatron-Bridge: its configuration as YAML, and a rate before each line."""
    job = {**JOB, **changed}
    bf16 = str(job["dtype"] == "bf16").lower()
    head = f"""\
using world size: {job["gpus"]}, data-parallel size: 8, context-parallel size: 1
------- Task Configuration -------
_target_: megatron.bridge.training.config.ConfigContainer
dataset:
  _target_: megatron.bridge.training.config.GPTDatasetConfig
  blend: null
  sequence_length: {job["seq"]}
mixed_precision:
  bf16: {bf16}
  fp8: null
  fp8_recipe: tensorwise
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama31ModelProvider
  bf16: {bf16}
  fp16: {"false" if bf16 == "true" else "true"}
  generation_config:
    config_dict:
      num_layers: 7
  hidden_size: 4096
  num_layers: {job["layers"]}
  recompute_modules:
  - core_attn
  seq_length: 131072
  tensor_model_parallel_size: {job["tp"]}
train:
  global_batch_size: {job["batch"]}
  micro_batch_size: 1

----------------------------------
Training ...
"""
    steps = [x for x in megatron(times_s, **changed).splitlines() if "iteration " in x]
    rated = []
    for seconds, line in zip(times_s, steps, strict=True):
        rated.append(f"Step Time : {seconds:.2f}s GPU utilization: {400 / seconds:.1f}MODEL_TFLOP/s/GPU")
        before, _, after = line.partition(" | throughput")
        rated.append(before + " | learning" + after.partition(" | learning")[2])
    return head + "\n".join(rated) + "\n"


def nemo(times_s: Sequence[float], **changed: object) -> str:
    """NeMo 1's configuration and groups; NeMo 2's lines of steps."""
    job = {**JOB, **changed}
    tp, gpus = int(str(job["tp"])), int(str(job["gpus"]))
    groups = [list(range(i, i + tp)) for i in range(0, gpus, tp)]
    head = f"""\
[NeMo I 2026-02-24 19:46:10 megatron_gpt_pretraining:34]

    ************** Experiment configuration ***********
[NeMo I 2026-02-24 19:46:10 megatron_gpt_pretraining:35]
    name: megatron_gpt
    trainer:
      devices: 8
      precision: {"bf16-mixed" if job["dtype"] == "bf16" else "16-mixed"}
    model:
      micro_batch_size: 1
      global_batch_size: {job["batch"]}
      encoder_seq_length: {job["seq"]}
      num_layers: {job["layers"]} # of the decoder
      hidden_size: 4096
      data:
        num_layers: 5

[NeMo I 2026-02-24 19:46:12 megatron_init:443] All tensor model parallel group ranks: {groups}
All distributed processes registered. Starting with {gpus} processes
"""
    lines = [
        f"0: Training epoch 0, iteration {i}/{len(times_s) - 1} | lr: 1e-4 | global_batch_size: "
        f"{job['batch']} | global_step: {i} | reduced_train_loss: 2.7 | train_step_timing in s: "
        f"{seconds:.4g} | consumed_samples: {(i + 1) * int(str(job['batch']))} | "
        f"TFLOPS_per_GPU: {400 / seconds:.3e}"
        for i, seconds in enumerate(times_s)
    ]
    return head + "\n".join(lines) + "\n"


def torchtitan(times_s: Sequence[float], *, ranks: int = 1, **changed: object) -> str:
    """torchtitan: sentences on what ran, and a line a step by each of the ranks, a millisecond apart."""
    job = {**JOB, **changed}
    tp, gpus = int(str(job["tp"])), int(str(job["gpus"]))
    said = [
        '  "mixed_precision_param": "' + {"bf16": "bfloat16", "fp16": "float16"}[str(job["dtype"])] + '",',
        f"Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard={gpus // tp}, cp=1, tp={tp}, "
        "ep=1, etp=1",
        "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.18GiB memory",
        f"Model llama3 8B size: {251_000_000 * int(str(job['layers'])):,} total parameters",
        f"Trainer is initialized with local batch size 1, global batch size {job['batch']}, gradient "
        f"accumulation steps 1, sequence length {job['seq']}, total steps {len(times_s)} (warmup 200)",
    ]
    lines = [
        x if x.startswith("  ") else f"[titan] {START:%Y-%m-%d %H:%M:%S},508 - root - INFO - {x}"
        for x in said
    ]
    now = START + timedelta(seconds=10)
    for i, seconds in enumerate(times_s, 1):
        now += timedelta(seconds=seconds)
        for rank in range(ranks):
            at = now + timedelta(milliseconds=rank)
            lines.append(
                f"[titan] {at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d} - root - INFO - step: {i:2d}  "
                f"loss:  7.62585  grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: {10_050 - rank:,}  "
                f"tflops: {314.71 - rank / 50:.2f}  mfu: 31.82%"
            )
    return "\n".join(lines) + "\n"


def hugging_face(times_s: Sequence[float], **changed: object) -> str:
    """Hugging Face Trainer: head, and a bar that returns to its line, with a loss every tenth step."""
    job = {**JOB, **changed}
    total, batch = len(times_s), int(str(job["batch"]))
    types = {"bf16": ("True", "False"), "fp16": ("False", "True")}[str(job["dtype"])]
    head = f"""\
Training/evaluation parameters SFTConfig(
bf16={types[0]},
fp16={types[1]},
max_length={job["seq"]},
)
Model config LlamaConfig {{
  "hidden_size": 4096,
  "num_hidden_layers": {job["layers"]},
  "vision_config": {{
    "hidden_size": 1024
  }}
}}
Map: 100%|██████████| 741/741 [00:02<00:00, 260.25 examples/s]
[INFO|trainer.py:2128] 2026-02-24 19:46:17,508 >> ***** Running training *****
[INFO|trainer.py:2129] 2026-02-24 19:46:17,508 >>   Num examples = 24,000
[INFO|trainer.py:2131] 2026-02-24 19:46:17,508 >>   Instantaneous batch size per device = 1
[INFO|trainer.py:2132] 2026-02-24 19:46:17,508 >>   Total train batch size (w. parallel, distributed & accumulation) = {batch:,}
[INFO|trainer.py:2133] 2026-02-24 19:46:17,508 >>   Gradient Accumulation steps = {batch // int(str(job["gpus"]))}
[INFO|trainer.py:2134] 2026-02-24 19:46:17,508 >>   Total optimization steps = {total:,}
  0%|          | 0/{total} [00:00<?, ?it/s]"""  # noqa: E501
    gone, parts = 0.0, [head]
    for i, seconds in enumerate(times_s, 1):
        gone += seconds
        rate = f"{seconds:5.2f}s/it" if seconds > 1 else f"{1 / seconds:5.2f}it/s"
        drawn = "█" * (10 * i // total)
        bar = f"{100 * i // total:3d}%|{drawn:<10}| {i}/{total} [{clock(gone)}<1:11:19, {rate}]"
        parts.append(f"\r{bar}")
        if i % 10 == 0:
            blank = " " * len(bar)
            parts.append(f"\r{blank}\n{{'loss': 1.3, 'grad_norm': 0.5, 'epoch': 0.02}}\n\r{bar}")
        if i == total // 2:
            parts.append(
                "\r".join(f"{10 * j:3d}%|█| {j}/9 [00:0{j}<00:09,  1.00s/it]" for j in range(10)) + "\n"
            )
    parts.append("\n{'train_runtime': 23395.3083, 'train_loss': 0.72, 'epoch': 1.0}\n")
    return "".join(parts)


def clock(seconds: float) -> str:
    """As the bar shows it."""
    whole = int(seconds)
    return f"{whole // 60:02d}:{whole % 60:02d}"


LOGS: Mapping[str, Callable[..., str]] = {
    "megatron-lm": megatron,
    "megatron-bridge": bridge,
    "nemo": nemo,
    "torchtitan": torchtitan,
    "hugging-face": hugging_face,
}
