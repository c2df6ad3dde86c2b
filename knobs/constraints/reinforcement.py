"""Rules of verl's batches, workers and rollout.

Sources: verl's ppo_trainer.yaml, ActorConfig and its validation, fsdp_workers, seqlen_balancing.
"""

from __future__ import annotations

from perfdoc.knobs.configuration import Undecided, View
from perfdoc.knobs.constraints.definition import Constraint

MINI, MICRO, PROMPTS = "verl_mini_batch_size", "micro_batch_size", "global_batch_size"
ULYSSES, DYNAMIC, TOKENS = "ulysses_sequence_parallel_size", "verl_dynamic_batch", "verl_max_tokens"
STRATEGY, CP = "verl_strategy", "context_parallel_size"
_FSDP_ONLY = (
    "verl_param_offload",
    "verl_optimizer_offload",
    "verl_forward_prefetch",
    "verl_offload_policy",
)
_ROLLOUTS_OWN = ("rollout_nodes", "rollout_ranks_per_node")
"""Ranks that generate samples on GPUs of their own."""
_MEGATRON_ONLY = tuple(f"verl_megatron_{what}_offload" for what in ("param", "grad", "optimizer"))


def _count(v: View, name: str) -> int:
    value = v.or_default(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Undecided(name)
    return value


def _degree(v: View, name: str) -> int:
    """A degree that is 1 where nobody names it."""
    try:
        return v.degree(name)
    except Undecided:
        if name in v.unknown:
            raise
        return 1


def _longest(v: View) -> int:
    return v.number("verl_max_prompt_length") + v.number("verl_max_response_length")


def _room(v: View, limit: str) -> int:
    """Tokens of one micro-batch: every rank of a sequence-parallel group takes its part."""
    return v.number(limit) * _degree(v, ULYSSES) * _degree(v, CP)


def _too_few_tokens(limit: str, switch: str) -> Constraint:
    return Constraint(
        name=f"{limit.replace('_', '-')}-below-sequence",
        subject=limit,
        kind="forbidden",
        broken=lambda v: v.on(switch) and _room(v, limit) < _longest(v),
        rule="a micro-batch must hold the longest sample: its tokens per GPU, times the ranks of sequence or "
        "context parallelism, must not be below max_prompt_length + max_response_length",
        dialects=("verl",),
    )


def _samples_per_rank(v: View) -> int:
    """Samples of a mini-batch on one data-parallel rank of FSDP."""
    ranks = v.number("world_size") // _degree(v, ULYSSES)
    return v.number(MINI) * _count(v, "rollout_n") // ranks


def _fsdp(v: View) -> bool:
    """Whether the engine is FSDP: by its name, else because FSDP's settings are made."""
    try:
        return v(STRATEGY) in ("fsdp", "fsdp2")
    except Undecided:
        if STRATEGY in v.unknown:
            raise
        return v("verl_param_offload") is not None


REINFORCEMENT: tuple[Constraint, ...] = (
    Constraint(
        name="mini-batch-above-train-batch",
        subject=MINI,
        kind="forbidden",
        broken=lambda v: v.number(MINI) > v.number(PROMPTS) and not v.named_on(DYNAMIC),
        rule="ppo_mini_batch_size must not exceed data.train_batch_size: both count prompts of a step",
        dialects=("verl",),
    ),
    Constraint(
        name="train-batch-over-mini-batch",
        subject=MINI,
        kind="forbidden",
        broken=lambda v: v.number(MINI) < v.number(PROMPTS) and v.number(PROMPTS) % v.number(MINI) != 0,
        rule="data.train_batch_size must be divisible by ppo_mini_batch_size",
        dialects=("verl",),
    ),
    Constraint(
        name="two-micro-batch-sizes",
        subject="verl_micro_batch_size",
        kind="forbidden",
        broken=lambda v: (
            v("verl_micro_batch_size") is not None and v.number(MICRO) > 0 and not v.named_on(DYNAMIC)
        ),
        rule="ppo_micro_batch_size, which is deprecated, and ppo_micro_batch_size_per_gpu exclude each other",
        fix=(("verl_micro_batch_size", None),),
        dialects=("verl",),
    ),
    Constraint(
        name="mini-batch-over-micro-batch",
        subject=MICRO,
        kind="forbidden",
        broken=lambda v: (
            _fsdp(v)
            and not v.named_on(DYNAMIC)
            and _samples_per_rank(v) > 0
            and _samples_per_rank(v) % v.number(MICRO) != 0
        ),
        rule="the samples of a mini-batch on one rank (ppo_mini_batch_size x rollout.n / data-parallel "
        "ranks) must be divisible by ppo_micro_batch_size_per_gpu",
        dialects=("verl",),
    ),
    Constraint(
        name="ulysses-needs-remove-padding",
        subject=ULYSSES,
        kind="forbidden",
        broken=lambda v: v.number(ULYSSES) > 1 and v("verl_remove_padding") is False,
        rule="ulysses_sequence_parallel_size above 1 needs model.use_remove_padding",
        fix=(("verl_remove_padding", True),),
        dialects=("verl",),
    ),
    Constraint(
        name="ulysses-over-ranks",
        subject=ULYSSES,
        kind="forbidden",
        broken=lambda v: v.number("world_size") % v.number(ULYSSES) != 0,
        rule="the ranks must be divisible by ulysses_sequence_parallel_size",
        dialects=("verl",),
    ),
    Constraint(
        name="rollout-tp-over-ranks",
        subject="rollout_tensor_parallel_size",
        kind="forbidden",
        broken=lambda v: (
            not any(v.is_given(name) for name in _ROLLOUTS_OWN)
            and v.number("world_size") % v.number("rollout_tensor_parallel_size") != 0
        ),
        rule="the ranks must be divisible by rollout.tensor_model_parallel_size",
        dialects=("verl",),
    ),
    _too_few_tokens(TOKENS, DYNAMIC),
    _too_few_tokens("rollout_log_prob_max_tokens", "rollout_log_prob_dynamic_batch"),
    _too_few_tokens("ref_log_prob_max_tokens", "ref_log_prob_dynamic_batch"),
    Constraint(
        name="engine-below-sequence",
        subject="rollout_max_model_len",
        kind="forbidden",
        broken=lambda v: (
            v("rollout_max_model_len") is not None and v.number("rollout_max_model_len") < _longest(v)
        ),
        rule="rollout.max_model_len must hold max_prompt_length + max_response_length",
        dialects=("verl",),
    ),
    *(
        Constraint(
            name=f"{name.replace('_', '-')}-is-fsdps",
            subject=name,
            kind="ineffective",
            broken=lambda v, name=name: v.on(name) and v(STRATEGY) == "megatron",  # type: ignore[misc]
            rule="fsdp_config is not read with strategy megatron",
            dialects=("verl",),
        )
        for name in _FSDP_ONLY
    ),
    *(
        Constraint(
            name=f"{name.replace('_', '-')}-is-megatrons",
            subject=name,
            kind="ineffective",
            broken=lambda v, name=name: v.on(name) and _fsdp(v),  # type: ignore[misc]
            rule="megatron's settings are not read with strategy fsdp or fsdp2",
            dialects=("verl",),
        )
        for name in _MEGATRON_ONLY
    ),
    Constraint(
        name="verl-forward-prefetch-needs-fsdp-1",
        subject="verl_forward_prefetch",
        kind="ineffective",
        broken=lambda v: v.on("verl_forward_prefetch") and v(STRATEGY) == "fsdp2",
        rule="forward_prefetch is read with strategy fsdp only: fsdp2 prefetches by itself",
        fix=(("verl_forward_prefetch", False),),
        dialects=("verl",),
    ),
    Constraint(
        name="offload-policy-needs-fsdp2",
        subject="verl_offload_policy",
        kind="ineffective",
        broken=lambda v: v.on("verl_offload_policy") and v(STRATEGY) == "fsdp",
        rule="offload_policy is read with strategy fsdp2 only",
        fix=((STRATEGY, "fsdp2"),),
        dialects=("verl",),
    ),
)
