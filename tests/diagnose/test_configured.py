"""Facts of the job that a configuration states, whatever framework it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfdoc.diagnose.asked import facts_given
from perfdoc.diagnose.job import published_name
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import known_models

LLAMA = """export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=${GPUS_PER_NODE:-8}
TP=2
MODEL=(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
  --untie-embeddings-and-output-weights)
TRAIN=(--micro-batch-size 1 --global-batch-size 128 --bf16 --sequence-parallel --recompute-activations)
torchrun --nproc_per_node $GPUS --nnodes 2 pretrain_gpt.py ${MODEL[@]} ${TRAIN[@]} \\
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size 4 \\
  --num-layers-per-virtual-pipeline-stage 2 \\
  --vocab-size 128256
"""


def facts_of(tmp_path: Path, name: str, text: str) -> JobFacts:
    (tmp_path / name).write_text(text)
    return facts_given([], tmp_path / name)


def said(facts: JobFacts, *names: str) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in names}


def test_a_launch_script_states_layout_batch_and_model(tmp_path: Path) -> None:
    # 16 ranks, TP 2 x PP 4: DP 2. 128 / (1 x 2) = 64 micro-batches. 32 / (4 x 2) = 4 chunks per rank.
    facts = facts_of(tmp_path, "run.sh", LLAMA)
    assert said(facts, "world_size", "tp", "pp", "dp", "cp", "ep", "vpp", "micro_batches") == {
        **{"world_size": 16, "tp": 2, "pp": 4, "dp": 2, "cp": 1, "ep": 1, "vpp": 4, "micro_batches": 64}
    }
    assert said(facts, "sequence_length", "dtype", "recompute") == {
        **{"sequence_length": 8192, "dtype": "bf16", "recompute": "selective"}
    }
    assert facts.model is not None
    assert msgspec.structs.replace(facts.model, name="") == msgspec.structs.replace(
        known_models()["llama3-8b"], name="", sequence_length=8192
    )
    assert facts.sources["tp"] == "--config run.sh"


def test_a_vocabulary_is_padded_as_megatron_lm_does(tmp_path: Path) -> None:
    # GPT-2's 50,257 entries to a multiple of 128 x TP 2 = 256: 197 x 256 = 50,432.
    text = LLAMA.replace("--vocab-size 128256", "--tokenizer-type GPT2BPETokenizer --vocab-file $VOCAB")
    facts = facts_of(tmp_path, "run.sh", text)
    assert facts.model is not None
    assert facts.model.vocabulary == 50_432
    unknown = facts_of(tmp_path, "run.sh", text.replace("GPT2BPETokenizer", "SentencePieceTokenizer"))
    assert unknown.model is None, "nothing says how many entries it has"
    assert unknown.tp == 2


def test_a_width_that_is_not_given_is_megatron_lms(tmp_path: Path) -> None:
    # With SwiGLU 4 x 4,096 x 2/3 = 10,922, down to a multiple of 64: 10,880.
    facts = facts_of(tmp_path, "run.sh", LLAMA.replace("--ffn-hidden-size 14336", ""))
    assert facts.model is not None
    assert facts.model.ffn_hidden_size == 10_880


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "ds.json",
            '{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true},'
            ' "zero_optimization": {"stage": 2}}',
            {"global_batch_sequences": 256, "micro_batch_sequences": 4, "dtype": "bf16"},
        ),
        (
            "titan.toml",
            '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'
            '[parallelism]\ntensor_parallel_degree = 4\n[activation_checkpoint]\nmode = "full"\n',
            {"micro_batch_sequences": 2, "sequence_length": 8192, "tp": 4, "recompute": "full"},
        ),
        (
            "train.py",
            "from transformers import TrainingArguments\n"
            "a = TrainingArguments(per_device_train_batch_size=8, gradient_checkpointing=True, bf16=True)\n",
            {"micro_batch_sequences": 8, "dtype": "bf16", "recompute": "full"},
        ),
        (
            "bridge.sh",
            "torchrun --nproc_per_node 8 --nnodes 2 scripts/training/run_recipe.py "
            "--recipe llama3_8b_pretrain_config model.tensor_model_parallel_size=4 train.micro_batch_size=1 "
            "train.global_batch_size=64"
            " model.seq_length=8192\n",
            {"world_size": 16, "tp": 4, "micro_batch_sequences": 1, "global_batch_sequences": 64},
        ),
    ],
)
def test_other_frameworks_state_theirs(
    tmp_path: Path, name: str, text: str, expected: dict[str, Any]
) -> None:
    facts = facts_of(tmp_path, name, text)
    assert said(facts, *expected) == expected
    assert (facts.model is not None) == (name in ("titan.toml", "bridge.sh"))


def test_numbers_that_contradict_each_other_leave_the_rest(tmp_path: Path) -> None:
    """16 ranks do not divide by TP 3: the script is for another number of nodes."""
    facts = facts_of(tmp_path, "run.sh", LLAMA.replace("TP=2", "TP=3"))
    assert said(facts, "world_size", "tp", "sequence_length") == {
        **{"world_size": None, "tp": 3, "sequence_length": 8192}
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("/models/Llama-3.1-70B", "llama3-70b"),
        ("llama31_405b_pretrain_config", "llama3.1-405b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("/data/llama3-8b/tokenizer.model", "llama3-8b"),
        ("my-llama3-8b", None),
        ("llama3-80b", None),
        ("", None),
    ],
)
def test_published_models_by_their_paths(text: str, name: str | None) -> None:
    assert published_name(text) == name
