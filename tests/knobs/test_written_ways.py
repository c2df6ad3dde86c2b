"""Jobs that nobody wrote for these tests to be easy: checks one by one, and every way to write a job down."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdoc.knobs.knob import Dialect
from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.settings import read_configuration
from perfdoc.knobs.values import as_text

FOLDER = Path(__file__).parent
SOUND = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8"
    " --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 "
    "--train-iters 100 --lr 1e-4 --min-lr 1e-5 --bf16 --mock-data --tokenizer-type NullTokenizer "
    "--vocab-size 32000 --position-embedding-type rope --swiglu --disable-bias-linear --normalization RMSNorm"
    " --untie-embeddings-and-output-weights --use-distributed-optimizer --overlap-grad-reduce "
    "--overlap-param-gather --tensor-model-parallel-size 2 --sequence-parallel --attention-dropout 0.0 "
    "--hidden-dropout 0.0 --use-mcore-models --transformer-impl transformer_engine --no-rope-fusion "
    "--distributed-backend nccl"
)
EXPERTS = (
    "--num-experts 64 --moe-router-topk 8 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 "
    "--moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-ffn-hidden-size 1536 --moe-router-dtype "
    "fp32 --moe-shared-expert-intermediate-size 1536"
)
JOB = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 "
    "--max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128 --train-iters 100 --bf16 "
    "--use-distributed-optimizer --tensor-model-parallel-size 2 --sequence-parallel"
)


def rows(name: str) -> list[Any]:
    table = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return [pytest.param(row, id=row["what"]) for row in table]


def told(text: str, name: str) -> list[str]:
    """Errors and warnings, each as one text."""
    found = lint(text, name).findings
    return [f"{f.key} {f.message} {f.why}" for f in found if f.severity != "note"]


@pytest.mark.parametrize("row", rows("megatron_lm_lines.yaml"))
def test_each_check_of_megatron_lm_is_told(row: dict[str, Any]) -> None:
    line = SOUND
    for part in row.get("without", ()):
        assert f" {part} " in f" {line} "
        line = f" {line} ".replace(f" {part} ", " ", 1).strip()
    line += " " + row.get("with", "").replace("<experts>", EXPERTS)
    exports = "".join(f"export {one}\n" for one in row.get("environment", "").split())
    command = f"torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py {shlex.join(line.split())}\n"
    found = told(exports + command, "run.sh")
    assert any(re.search(row["told"], one, re.IGNORECASE) for one in found) if row["told"] else found == []


@pytest.mark.parametrize("row", rows("written_ways.yaml"))
def test_a_job_is_read_however_it_is_written(row: dict[str, Any], tmp_path: Path) -> None:
    text = row["text"].replace("<job>", JOB)
    found = told(text, row["file"])
    assert [w for w in row["told"] if not any(re.search(w, one, re.IGNORECASE) for one in found)] == []
    assert [one for one in found if not any(re.search(w, one, re.IGNORECASE) for w in row["told"])] == []
    if "sets" in row:
        (tmp_path / row["file"]).write_text(text)
        values = read_configuration(tmp_path / row["file"]).values
        assert {name: values.get(name) for name in row["sets"]} == row["sets"]


@pytest.mark.parametrize(
    ("dialect", "knob", "version", "default"),
    [
        ("deepspeed", "zero_offload_optimizer_pinned", "0.18", "false"),
        ("deepspeed", "zero_offload_optimizer_pinned", "0.19", "true"),
        ("deepspeed", "zero_offload_optimizer_pinned", "0.20.1", "true"),
        ("megatron_lm", "moe_deepep_num_sms", "0.16.1", "20"),
        ("megatron_lm", "moe_deepep_num_sms", "0.19.0", "null"),
        ("megatron_bridge", "moe_hybridep_num_sms", "0.3", "16"),
        ("megatron_bridge", "moe_hybridep_num_sms", "0.6", "null"),
        ("megatron_bridge", "dataloader_num_workers", "0.6", "2"),
        ("megatron_bridge", "cuda_graph_scope", "0.3", "full"),
        ("megatron_bridge", "cuda_graph_scope", "0.6", "null"),
        ("megatron_lm", "data_parallel_sharding_strategy", "0.16.1", "no_shard"),
        ("megatron_lm", "data_parallel_sharding_strategy", "0.19.0", "optim_grads_params"),
        ("megatron_lm", "data_parallel_sharding_strategy", "", "no_shard"),
    ],
)
def test_a_default_is_that_of_the_version(dialect: Dialect, knob: str, version: str, default: str) -> None:
    assert as_text(catalogue()[knob].default(dialect, version)[1]) == default


def test_a_rule_of_one_version_is_not_told_of_a_later_one() -> None:
    """--cuda-graph-modules came with 0.19.0, whose checks of muon were not seen."""
    line = f"torchrun pretrain_gpt.py {SOUND} --optimizer muon".replace("--use-distributed-optimizer ", "")
    line = line.replace("--overlap-param-gather ", "")
    assert any("muon excludes" in one for one in told(f"{line}\n", "run.sh"))
    assert not any("muon excludes" in one for one in told(f"{line} --cuda-graph-modules attn\n", "run.sh"))
