"""Whatever the settings: what rules on mappings, pipelines and experts advise breaks nothing that held."""

import random
from collections.abc import Mapping

import pytest

from perfdoc.knobs.check import violations
from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.advise import settle, value_of
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.registry import own_rules, verdict_of
from perfdoc.rules.facts.degrees import degrees_of
from tests.amount import tries
from tests.planted.spec import JobSpec
from tests.rules.planted_cases import (
    GPUS,
    LLAMA,
    MIXTRAL,
    on,
    planted_case,
    under,
    with_compute,
    with_exposed,
)

SEEDS = range(tries(100, 500))
CHOICES: Mapping[str, tuple[Value, ...]] = {
    "tensor_model_parallel_size": (1, 2, 4, 8, 16),
    "pipeline_model_parallel_size": (1, 2, 4, 8, 3),
    "context_parallel_size": (1, 2, 4),
    "virtual_pipeline_model_parallel_size": (None, 1, 2, 4, 8),
    "expert_model_parallel_size": (1, 2, 4, 8, 16),
    "expert_tensor_parallel_size": (None, 1, 2),
    "num_moe_experts": (None, 4, 8, 64, 0),
    "data_parallel_size": (1, 2, 4, 8),
    "global_batch_size": (1, 8, 48, 64, 256),
    "micro_batch_size": (1, 2, 3, 8),
    "num_layers": (1, 7, 8, 30, 32, 61),
    "num_attention_heads": (12, 32),
    "num_query_groups": (None, 8),
    "hidden_size": (4096, 16384),
    "seq_length": (512, 4098, 8192, 65536),
    "sequence_parallel": (True, False),
    "use_distributed_optimizer": (True, False),
    "use_megatron_fsdp": (True, False),
    "use_torch_fsdp2": (True, False),
    "overlap_p2p_comm": (True, False),
    "batch_p2p_comm": (True, False),
    "overlap_p2p_comm_warmup_flush": (True, False),
    "overlap_grad_reduce": (True, False),
    "overlap_moe_expert_parallel_comm": (True, False),
    "moe_shared_expert_overlap": (True, False),
    "moe_shared_expert_intermediate_size": (None, 512),
    "moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
    "moe_flex_dispatcher_backend": ("deepep", "hybridep"),
    "moe_enable_deepep": (True, False),
    "moe_grouped_gemm": (True, False),
    "moe_permute_fusion": (True, False),
    "delay_wgrad_compute": (True, False),
    "recompute_granularity": (None, "full", "selective"),
    "cuda_device_max_connections": (1, 8, 32),
    "cuda_graph_impl": ("none", "local"),
    "bf16": (True, False),
    "mtp_num_layers": (None, 1, 2),
    "pipeline_model_parallel_layout": (None, "Et|tL"),
    "num_layers_in_first_pipeline_stage": (None, 4),
    "num_layers_in_last_pipeline_stage": (None, 4),
    "account_for_embedding_in_pipeline_split": (True, False),
    "account_for_loss_in_pipeline_split": (True, False),
    "encoder_pipeline_model_parallel_size": (0, 1),
    "encoder_tensor_model_parallel_size": (0, 1, 8),
    "nnodes": (1, 2, 4),
    "nproc_per_node": (1, 4, 8),
    "cp_comm_type": (None, "a2a", "p2p"),
}
OURS = [r for r in own_rules() if "PD301" <= r.meta.code <= "PD379" and r.meta.code != "PD303"]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """A pipeline with an uneven stage, experts and tensor ranks, each with much exposed of everything."""
    specs = (
        JobSpec(pp=4, micro_batches=8, steps=2, stage_extra_ns=(0, 0, 0, 600_000)),
        JobSpec(dp=4, ep=4, micro_batches=2, steps=2),
        JobSpec(tp=2, dp=2, micro_batches=2, steps=2),
    )
    found = []
    for spec in specs:
        case = planted_case(spec)
        if spec.tp > 1:  # long steps, whose compute could hide FSDP's traffic
            case = with_compute(case, 30_000_000_000)
        for dimension in ("tp", "cp", "dp", "ep"):
            case = with_exposed(case, dimension, 0.06)
        found.append(case)
    return found


def drawn(seed: int, cases: list[Case]) -> Case:
    dice = random.Random(seed)
    settings = {knob: dice.choice(values) for knob, values in CHOICES.items() if dice.random() < 0.85}
    dialect = dice.choice(["megatron_core", "megatron_lm", "megatron_bridge", "nemo", "verl", "perfdoc"])
    model = dice.choice([LLAMA, MIXTRAL, None])
    return under(on(dice.choice(cases), dice.choice(GPUS)), settings, model=model, dialect=dialect)


def test_advice_breaks_nothing(cases: list[Case]) -> None:
    fired = set()
    for seed in SEEDS:
        case = drawn(seed, cases)
        before = {v.constraint for v in violations(case.configuration)}
        for rule in OURS:
            verdict = verdict_of(rule, case)
            if verdict.state != "fires":
                continue
            fired.add(rule.meta.code)
            assert verdict.reason, (seed, rule.meta.code)
            assert verdict.verify, (seed, rule.meta.code)
            assert verdict.false_alarm, (seed, rule.meta.code)
            allowed = {p.knob: value_of(p) for p in settle(case, verdict.advice) if not p.forbidden}
            assert allowed or verdict.remedy or verdict.otherwise, (seed, rule.meta.code)
            after = case.configuration.with_changes(allowed)
            broken = {v.constraint for v in violations(after)} - before
            assert not broken, (seed, rule.meta.code, allowed, [c.rule for c in broken if c])
            changed = degrees_of(under(case, after.values, model=case.job.facts.model))
            assert changed is None or min(changed.tp, changed.pp, changed.cp, changed.dp, changed.ep) >= 1
    assert fired > {"PD301", "PD305", "PD310", "PD313", "PD314", "PD317", "PD342", "PD343"}
