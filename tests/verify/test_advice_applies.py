"""Each setting that a rule advises on its example is one that `perfdoc verify --apply` can start a run with.

The examples' advice is read from docs/rules/examples.json, which test_pages.py holds fresh. A job of the
trainer on which the advice makes sense is planned on 16 GPUs, without it and with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.values import read_value
from perfdoc.rules.engine.advisable import advisable
from perfdoc.rules.engine.registry import own_rules
from perfdoc.trainer.config.resolve import KEYS, resolve, why_refused
from perfdoc.trainer.layout import plan

EXAMPLES = json.loads((Path(__file__).parents[2] / "docs/rules/examples.json").read_text(encoding="utf-8"))
RANKS = 16
_QUEUES = "cuda_device_max_connections=null"
_STAGES = ("pipeline_model_parallel_size=4",)
_CHUNKS = (*_STAGES, "virtual_pipeline_model_parallel_size=4")
_EXPERTS = ("num_moe_experts=8", "expert_model_parallel_size=4")
_FSDP2 = tuple(
    f"{knob}=false"
    for knob in (
        *("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"),
        "grad_reduce_in_fp32",
    )
)
JOBS: Mapping[str, Sequence[str]] = {
    "PD105": (*_CHUNKS, "overlap_p2p_comm=true", "batch_p2p_comm=false"),
    "PD113": ("tp_comm_overlap=true",),
    "PD115": ("pipeline_model_parallel_size=2",),
    "PD201": ("use_te_rng_tracker=true",),
    "PD206": ("use_te_rng_tracker=true",),
    "PD207": (*_EXPERTS, "cuda_graph_impl=transformer_engine", "use_te_rng_tracker=true"),
    "PD301": _STAGES,
    "PD304": _CHUNKS,
    "PD305": _STAGES,
    "PD306": ("pipeline_model_parallel_size=2",),
    "PD307": _CHUNKS,
    "PD317": (_QUEUES,),
    "PD318": (_QUEUES, "use_torch_fsdp2=true", *_FSDP2),
    "PD340": ("num_moe_experts=8", "expert_tensor_parallel_size=2"),
    "PD341": _EXPERTS,
    "PD342": (*_EXPERTS, _QUEUES),
    "PD343": _EXPERTS,
    "PD344": (*_EXPERTS, "moe_shared_expert_intermediate_size=512", "moe_token_dispatcher_type=alltoall"),
    "PD346": (*_EXPERTS, "pipeline_model_parallel_size=2"),
    "PD402": ("fp8=hybrid", "use_te_rng_tracker=true"),
    "PD507": ("fp8=hybrid",),
}
"""What the advice presupposes, beside 16 GPUs, TP 2 and a dense model of 32 layers."""
NOT_THE_TRAINERS = {
    "PD122": {"ulysses_sequence_parallel_size"},
    "PD320": {"encoder_tensor_model_parallel_size"},
    "PD601": {"sequence_packing_size"},
    "PD602": {"sequence_packing_size"},
}
"""Of other frameworks; the trainer refuses them with the reason."""


def _advised(code: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for piece in EXAMPLES[code]["advice"]:
        knob, _, change = piece["change"].partition(": ")
        change = change.removesuffix(", if not set already")
        value = read_value(catalogue()[knob], change.split(" → ")[-1])
        assert isinstance(value, str | int | float | bool | tuple | None), knob
        found[knob] = value
    return found


def _planned(settings: Sequence[str]) -> None:
    plan(resolve("llama3_8b", ["data_parallel_size=null", *settings]).config, RANKS, "cuda")


def _override(knob: str, value: Value) -> str:
    return f"{knob}={json.dumps(list(value) if isinstance(value, tuple) else value)}"


@pytest.mark.parametrize("code", [code for code, example in EXAMPLES.items() if example["advice"]])
def test_what_a_rule_advises_can_be_run(code: str) -> None:
    advised, job = _advised(code), JOBS.get(code, ())
    foreign = NOT_THE_TRAINERS.get(code, set())
    assert advised.keys() - KEYS.keys() == foreign
    assert all(why_refused(knob) for knob in foreign)
    _planned(job)
    _planned([*job, *(_override(k, v) for k, v in advised.items() if k not in foreign)])


def test_a_rule_that_can_advise_a_setting_does_on_its_example() -> None:
    silent = {r.meta.code for r in own_rules() if advisable(r) and not EXAMPLES[r.meta.code]["advice"]}
    assert silent == set()
