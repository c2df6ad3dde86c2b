"""Set lines of rules, put into a command line that is sound: what comes out is sound too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.settings import read_configuration
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import advise, settle
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.graphs import graph_advice
from perfdoc.rules.facts.overlaps import ep_overlap, tp_overlap
from perfdoc.rules.facts.work_queues import megatron_fsdp, torch_fsdp2
from tests.rules.cases import case_of, step_with_gap

UNTIED = "--untie-embeddings-and-output-weights"
DENSE = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 "
    "--max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 --bf16 "
    "--use-distributed-optimizer --normalization RMSNorm --untie-embeddings-and-output-weights "
    "--attention-dropout 0 --hidden-dropout 0"
)
MOE = (
    f"{DENSE} --num-experts 64 --moe-router-topk 8 --expert-model-parallel-size 8 --moe-grouped-gemm "
    "--expert-tensor-parallel-size 1 --moe-token-dispatcher-type alltoall --moe-router-dtype fp32"
)
TP = f"{DENSE} --tensor-model-parallel-size 2"


def one(knob: str, to: Value) -> Callable[[Case], list[Advice]]:
    return lambda case: [advise(knob=knob, to=to, why="w")]


def applied(args: str, pieces: Sequence[Advice]) -> tuple[str, str]:
    """(variables, arguments) with the set lines of Megatron-LM in them."""
    variables, words = "", args
    for piece in pieces:
        line = piece.dialects.get("env", "") or piece.dialects["megatron_lm"]
        if line.startswith("unset") or re.fullmatch(r"[A-Z_]+=\S+", line):
            variables += f"export {line}\n" if "=" in line else f"{line}\n"
            continue
        left_out = line.startswith("leave out")
        gone = line.removeprefix("leave out ").split(" and ") if left_out else [line.split()[0]]
        for flag in gone:
            words = re.sub(rf"{flag}(?= |$)( [^-]\S*)*", "", words)
        words += "" if left_out else f" {line}"
    return variables, words


def errors(variables: str, args: str) -> list[str]:
    script = f"{variables}torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py {shlex.join(args.split())}\n"
    return [f"{f.key}: {f.message}" for f in lint(script, "run.sh").findings if f.severity == "error"]


@pytest.mark.parametrize(
    ("args", "made"),
    [
        pytest.param(DENSE, lambda c: megatron_fsdp(c, "w"), id="Megatron FSDP"),
        pytest.param(DENSE, lambda c: torch_fsdp2(c, "w"), id="FSDP2"),
        pytest.param(DENSE.replace(UNTIED, ""), lambda c: torch_fsdp2(c, "w"), id="tied"),
        pytest.param(
            f"{DENSE} --ckpt-format torch", lambda c: megatron_fsdp(c, "w"), id="another checkpoint"
        ),
        pytest.param(DENSE, lambda c: graph_advice(c, None, None), id="graphs"),
        pytest.param(MOE, lambda c: graph_advice(c, None, None), id="graphs of experts"),
        pytest.param(MOE, ep_overlap, id="EP overlap"),
        pytest.param(TP, lambda c: [*tp_overlap(c)], id="TP overlap"),
        pytest.param(DENSE, one("overlap_param_gather", True), id="gather alone"),
        pytest.param(DENSE, one("recompute_granularity", "full"), id="full recompute"),
        pytest.param(DENSE, one("fp8_param_gather", True), id="FP8 gather"),
        pytest.param(DENSE, one("optimizer_cpu_offload", True), id="optimizer offload"),
        pytest.param(DENSE, one("fine_grained_activation_offloading", True), id="fine-grained offload"),
    ],
)
def test_what_is_advised_is_accepted(
    tmp_path: Path, args: str, made: Callable[[Case], Sequence[Advice]]
) -> None:
    """Of a whole command, and of one that takes more words from elsewhere."""
    assert errors("", args) == [], "the job is sound"
    for more in ("", ' "$@"'):
        file = tmp_path / "run.sh"
        file.write_text(f"torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py {args}{more}\n")
        configuration = read_configuration(file)
        assert configuration.complete == (more == "")
        case = replace(case_of(tmp_path, step_with_gap(1)), configuration=configuration)
        pieces = [piece for piece in settle(case, made(case)) if not piece.forbidden]
        assert errors(*applied(args, pieces)) == []
        assert pieces or configuration.complete is False


def test_bridges_null_is_off(tmp_path: Path) -> None:
    """comm_overlap leaves the EP overlap null where nobody sets it."""
    values: dict[str, Value] = {"expert_model_parallel_size": 8, "overlap_moe_expert_parallel_comm": None}
    configuration = Configuration(values=values, dialect="megatron_bridge")
    case = replace(case_of(tmp_path, step_with_gap(1)), configuration=configuration)
    assert "overlap_moe_expert_parallel_comm" in [p.knob for p in ep_overlap(case)]


def test_a_companion_comes_with_its_knob_and_not_without() -> None:
    """CUDA graphs of Megatron-Bridge ask for Transformer Engine's random state, of which nobody spoke."""
    from perfdoc.knobs.check import companions

    bridge = Configuration(dialect="megatron_bridge")
    needed = companions(bridge, {"cuda_graph_impl": "local"}, "cuda_graph_impl")
    assert {name: value for name, (value, _) in needed.items()} == {"use_te_rng_tracker": True}
    set_already = Configuration(dialect="megatron_bridge", values={"use_te_rng_tracker": True})
    assert companions(set_already, {"cuda_graph_impl": "local"}, "cuda_graph_impl") == {}
    assert companions(bridge, {"cuda_graph_impl": "none"}, "cuda_graph_impl") == {}
