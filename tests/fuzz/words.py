"""What users write beside captures: configurations, logs of trainers, and diagnoses that are compared."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import base
from tests.fuzz.edits import TEXTS, WIDE_NUMBERS, edit_bytes, edit_tree, other

_KEYS = (
    *("pp", "tp", "dp", "cp", "ep", "world_size", "global_batch_size", "micro_batch_size", "num_layers"),
    *("seq_length", "hidden_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("num_attention_heads", "overlap_grad_reduce", "bucket_size", "recompute_granularity", "model_type"),
    *("architectures", "vocab_size", "num_experts", "virtual_pipeline_model_parallel_size", "NCCL_ALGO"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "fp8", "intermediate_size", "num_key_value_heads", "peak_tflops"),
    *("flops_per_step", "parameters", "gpu"),
)
_LINES = (
    "tp: 2\npp: 4\nglobal_batch_size: 64\n",
    "model:\n  tensor_model_parallel_size: 2\n  num_layers: 8\ntrainer: {devices: 8, num_nodes: 2}\n",
    '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000, '
    '"intermediate_size": 11008, "num_attention_heads": 32}',
    "export NCCL_ALGO=Ring\npython train.py --tensor-model-parallel-size 2 --bf16 --num-layers 8\n",
    "tensor_model_parallel_size=2\nddp.overlap_grad_reduce=true\n",
    "import x\ncfg.model.tensor_model_parallel_size = 4\ncfg['a'] = (1, 2)\n",
)
_SPLICES = (
    *(b"&a ", b"*a", b"<<: *a\n", b"!!python/object/apply:os.system [true]", b"- ", b"? ", b": ", b"\t"),
    *(b"%YAML 9\n", b"a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", b"{" * 500, b"[" * 500, b"---\n", b"'"),
    *(b'"', b"|\n", b">\n", b"\xff", b"1e999", b"0x" + b"f" * 400, b".nan", b"1_000", b"9" * 5_000),
    *(b"2001-13-45", b"12:30:45", b"!!binary x", b"$(true)", b"\\\n", b"\x00", b"--", b"${A}", b"`true`"),
    *(b"EOF\n", b"#", b"=", b"iteration 5/ 30 |", b"nan", b"|"),
)


def config(rng: Random, folder: Path) -> Path:
    """A configuration in one of the ways that are read, edited in its keys, values or bytes."""
    text = rng.choice(_LINES)
    kind = rng.randrange(3)
    if kind == 0:
        tree: dict[str, Any] = {rng.choice(_KEYS): rng.choice((1, 2, 8, 64, True, "bf16")) for _ in range(5)}
        edited = edit_tree(rng, tree | {rng.choice(_KEYS): rng.choice(WIDE_NUMBERS)}, rng.randrange(1, 4))
        text = json.dumps(edited)
    elif kind == 1:
        text += "".join(f"{rng.choice(_KEYS)}: {other(rng, 2)}\n" for _ in range(rng.randrange(1, 6)))
    content = text.encode("utf-8", "replace")
    if rng.random() < 0.7:
        content = edit_bytes(rng, content, rng.choice((1, 2, 5)), _SPLICES)
    path = folder / f"given.{rng.choice(('yaml', 'json', 'sh', 'py', 'txt'))}"
    path.write_bytes(content)
    return path


def log(rng: Random, folder: Path, name: str) -> Path:
    """A log of thirty steps of one of three trainers, with lines and bytes that are others."""
    kind, lines = rng.randrange(3), []
    for i in range(1, 31):
        ms = rng.choice((100.0, 100.1, 100.2))
        lines.append(
            (
                f" iteration {i:8d}/ 30 | elapsed time per iteration (ms): {ms} | "
                f"throughput per GPU (TFLOP/s/GPU): 400.0 | global batch size: 128 | lm loss: 1.0 |",
                f"Step Time : {ms / 1000}s GPU utilization: 663.5MODEL_TFLOP/s/GPU\n"
                f" iteration {i}/ 30 | elapsed time per iteration (ms): {ms} | global batch size: 128 |",
                f"Training epoch 0, iteration {i}/30 | lr: 1 | global_batch_size: 32 | global_step: {i} | "
                f"train_step_timing in s: {ms / 1000}",
            )[kind]
        )
    for _ in range(rng.randrange(0, 4)):
        at = rng.randrange(len(lines))
        words = lines[at].split(" ")
        words[rng.randrange(len(words))] = str(rng.choice((*TEXTS, *WIDE_NUMBERS, "nan", "1e9", "inf")))
        lines[at] = rng.choice((" ".join(words), lines[rng.randrange(len(lines))], ""))
    content = "\n".join(lines).encode("utf-8", "replace")
    if rng.random() < 0.5:
        content = edit_bytes(rng, content, rng.choice((1, 3, 20)), _SPLICES)
    path = folder / name
    path.write_bytes(content)
    return path


@cache
def _diagnosis(bases: Path) -> bytes:
    from perfdoc.diagnose.asked import parse_request
    from perfdoc.diagnose.diagnosis import diagnosis_of
    from perfdoc.diagnose.measuring import measure_all
    from perfdoc.results import to_json

    folder = bases / "for-diagnosis"
    folder.mkdir(exist_ok=True)
    for rank in range(base.RANKS):
        (folder / f"rank{rank}.json").write_bytes(base.content(bases, "json", rank, "new"))
    return to_json(diagnosis_of(measure_all(parse_request([str(folder)], jobs=1)), None)[0])


def diagnosis(rng: Random, folder: Path, bases: Path) -> Path:
    """A diagnosis.json with places or bytes that are others."""
    content = _diagnosis(bases)
    if rng.random() < 0.7:
        content = json.dumps(edit_tree(rng, json.loads(content), rng.randrange(1, 5))).encode(
            "utf-8", "replace"
        )
    else:
        content = edit_bytes(rng, content, rng.choice((1, 2, 10)), (b'"', b"{", b"nan", b"\xff", b"1e400"))
    path = folder / "diagnosis.json"
    path.write_bytes(content)
    return path
