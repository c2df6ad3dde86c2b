"""Command lines that Megatron-LM itself judged: what it refuses is told for its reason."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import pytest

from perfdoc.knobs.lint.text import lint
from tests.conftest import ROOT

TABLE = ROOT.parent / "shared" / "knowledge" / "frameworks" / "megatron_lm_verdicts.tsv"
REASONS: Mapping[str, str] = {
    "world not divisible": "ranks-over-degrees",
    "hier sizes product wrong": "hierarchical-sizes-make-cp",
    "--model-parallel-size removed": "--model-parallel-size",
    "enable_cuda_graph with impl": "--enable-cuda-graph",
    "vpp with layout": "virtual-stages-exclude-layout",
    "uneven with layers-per-vstage": "uneven-stages-need-number-of-virtual-stages",
    "layers not divisible by pp": "layers-over-stages",
    "pp 2 vpp without p2p overlap": "two-stages-interleaved-need-p2p-overlap",
    "param gather without grad reduce": "param-gather-needs-grad-overlap",
    "torch fsdp2 with dist opt": "fsdp2-excludes-distributed-optimizer",
    "torch fsdp2 tied embeddings": "fsdp2-needs-untied-embeddings",
    "torch fsdp2 CDMC=1": "fsdp-needs-several-queues",
    "megatron fsdp ckpt format": "fsdp-needs-its-checkpoint",
    "gather with step + dist ckpt": "gather-with-step-needs-old-checkpoint",
    "fp8 and fp4": "fp8-excludes-fp4",
    "fp8 gather without fp8": "fp8-gather-needs-fp8",
    "bf16 main grads with fp32 accum": "fp32-sums-need-fp32-main-grads",
    "seq not div by 2cp": "sequence-over-cp",
    "distribute saved with sp": "distributed-activations",
    "selective with method": "selective-recompute-excludes-method",
    "tp comm overlap without sp": "tp-overlap-needs-tp-and-sp",
    "hybrid cp without per token loss": "hybrid-cp-needs-per-token-loss",
    "ep>1 without experts": "ep-needs-experts",
    "muon with dist opt": "muon-excludes-use-distributed-optimizer",
    "fp8 gather with optimizer offload": "fp8-gather-with-optimizer-offload",
    "fine grained offload local impl": "fine-grained-offload-needs-te",
    "graph scope full with others": "full-scope-is-alone",
    "deterministic with flash": "deterministic-excludes-use-flash-attn",
    "mla with gqa": "latent-attention-excludes-groups",
    "fp16 and bf16": "bf16-excludes-fp16",
    "query groups vs tp": "query-groups-over-tp",
    "custom recipe no factory": "fp8-custom-recipe-needs-factory",
    "deepep+hybridep": "deepep-excludes-hybridep",
    "shared overlap with flex": "shared-overlap-excludes-flex",
    "capacity with sinkhorn": "capacity-excludes-sinkhorn",
    "cpu offload layers >= layers": "offload-below-layers",
    "cpu offload with recompute": "offload-excludes-recompute",
    "full without layers": "full-recompute-needs-method",
    "recompute modules invalid": "--recompute-modules",
    "mla_up_proj without mla": "mla-up-proj-needs-mla",
    "shared_experts recompute with overlap": "shared-experts-recompute",
    "moe-layer-recompute deprecated": "--moe-layer-recompute",
    "fine grained no modules": "fine-grained-offload-needs-modules",
    "attn_proj without core_attn": "attn-proj-needs-core-attn",
    "uneven does not fit": "uneven-stages-do-not-fit",
    "accounting not divisible": "layers-over-stages",
    "quantization padding without fp8": "padding-for-quantization",
    "topk 1 softmax": "one-expert-per-token-needs-pre-softmax",
    "full_iteration with te": "full-iteration-needs-local",
    "preprocess without router": "preprocess-scope-needs-router",
    "mlp scope all moe": "mlp-scope-needs-dense-layers",
    "full recompute with te graph": "full-recompute-with-graphs",
    "graph attn scope with recompute core_attn+dropout": "graphed-attention-recompute-excludes-dropout",
    "ep overlap without ep": "ep-overlap-needs-ep",
    "ep overlap full recompute": "ep-overlap-excludes-full-recompute",
    "ep overlap mtp 2": "ep-overlap-mtp",
    "early release alone": "ep-overlap-early-attn-memory-release-needs-ep-overlap",
    "moe with tp without sp": "experts-with-tp-need-sequence-parallel",
    "wgrad deferral negative": "negative-deferral-limit",
    "exp_avg fp8 without aware": "exp-avg-dtype-needs-aware-optimizer",
    "cp type list": "cp-type-per-layer",
    "nccl ub expandable": "user-buffers-exclude-expandable-segments",
}
"""What was tried → the rule that says so, or the flag where the finding is about one."""
LATER = {
    "vp group too small",
    "avg in collective with per token loss",
    "gbs not divisible",
    "fp32 rs with instances",
}
"""Takes its arguments and refuses them when training starts."""


def verdicts() -> list[tuple[str, str, str, str]]:
    """(verdict, what, environment, arguments) of each command line."""
    if not TABLE.is_file():
        pytest.skip("the verdicts (../shared/knowledge beside the repository) are not here")
    lines = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return [(verdict, what, env, args) for verdict, what, _, env, args in lines[1:]]


def told(env: str, args: str) -> list[str]:
    """Rules and flags of the findings that are no notes."""
    script = "".join(f"export {one}\n" for one in env.split())
    script += f"torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py {shlex.join(args.split())}\n"
    found = [f for f in lint(script, "run.sh").findings if f.severity != "note"]
    return [f.why.rpartition("(")[2].removesuffix(")") for f in found] + [f.key for f in found]


def test_what_megatron_lm_refuses_or_warns_of_is_told_for_its_reason() -> None:
    tried = [(what, env, args) for verdict, what, env, args in verdicts() if verdict != "passed"]
    missed = [what for what, env, args in tried if REASONS[what] not in told(env, args)]
    assert missed == [], f"{len(tried) - len(missed)} of {len(tried)} are told"


def test_what_megatron_lm_takes_is_not_told_unless_training_stops_later() -> None:
    passed = {what: told(env, args) for verdict, what, env, args in verdicts() if verdict == "passed"}
    assert {what for what, findings in passed.items() if findings} == LATER


SOUND = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 "
    "--max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 --bf16 "
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --tensor-model-parallel-size 2 "
    "--sequence-parallel --normalization RMSNorm"
)


@pytest.mark.parametrize(
    "more",
    [
        "",
        "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2",
        "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*8|t*8|t*8|t*8L'",
        "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        "--cuda-graph-impl transformer_engine --cuda-graph-scope attn",
        "--num-experts 64 --moe-router-topk 8 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 "
        "--moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-router-dtype fp32",
        "--context-parallel-size 2 --cp-comm-type a2a",
        "--optimizer-cpu-offload --use-precision-aware-optimizer --exp-avg-dtype bf16",
    ],
)
def test_sound_jobs_are_silent(more: str) -> None:
    script = f"torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py {SOUND} {more}\n"
    assert [f for f in lint(script, "run.sh").findings if f.severity != "note"] == []


def test_a_dropped_word_is_found() -> None:
    """Behind a program's name stands anything; everywhere else a value has a flag, and a flag its value."""
    words = SOUND.split()
    valued = [at for at in range(2, len(words) - 1) if words[at][:2] == "--" and words[at + 1][:2] != "--"]
    assert len(valued) == 8
    for at in (*valued, *(at + 1 for at in valued)):
        line = shlex.join([*words[:at], *words[at + 1 :]])
        found = lint(f"torchrun --nproc_per_node 8 pretrain_gpt.py {line}\n", "run.sh").findings
        assert [f.code for f in found if f.severity == "error"] == ["PL203"], words[at]


@pytest.mark.parametrize(
    ("more", "codes"),
    [
        ("--tokenizer-type Llama2Tokenizerr --lr-decay-style cosin", ["PL201", "PL201"]),
        ("--tokenizer-type OurOwnTokenizer --lr-decay-style polynomial", []),  # of a fork
        ("--log-interval often --lr fast", ["PL201", "PL201"]),
        ("--log-intervall 5 --exit_interval 3", ["PL101", "PL101"]),
        ("--batch-size 4", ["PL102"]),
        ("--no-async-tensor-model-parallel-allreduce", []),
        ("--no-async-tensor-model-parallel-allreduce --cuda-graph-modules attn", ["PL102"]),
    ],
)
def test_flags_that_are_no_knobs_are_known_by_the_parsers_table(more: str, codes: list[str]) -> None:
    """One that 0.19.0 no longer has is told where another shows that version."""
    script = f"torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py {SOUND} {more}\n"
    assert [f.code for f in lint(script, "run.sh").findings if f.severity != "note"] == codes


def test_arguments_of_a_checkpoint_may_be_anything() -> None:
    command = "torchrun --nproc_per_node 8 tools/serve.py --num-layers 8 --overlap-param-gather"
    assert [f.code for f in lint(command, "serve.sh").findings if f.severity == "error"]
    assert lint(f"{command} --use-checkpoint-args", "serve.sh").findings == ()
