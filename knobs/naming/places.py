"""Where each dialect keeps its settings: containers, classes and roles, brought to one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from perfdoc.knobs.knob import Dialect
from perfdoc.knobs.naming.nearest import slips
from perfdoc.patterns import pattern_of

BRIDGE_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "TransformerConfig": "model",
        "GPTModelProvider": "model",
        "T5ModelProvider": "model",
        "MambaModelProvider": "model",
        "DistributedDataParallelConfig": "ddp",
        "OptimizerConfig": "optimizer",
        "TrainingConfig": "train",
        "DistributedInitConfig": "dist",
        "CommOverlapConfig": "comm_overlap",
        "MixedPrecisionConfig": "mixed_precision",
        "ProfilingConfig": "profiling",
        "DataloaderConfig": "dataset",
        "FinetuningDatasetConfig": "dataset",
        "GPTDatasetConfig": "dataset",
    }
)
"""Megatron-Bridge: class → the container's attribute that holds one."""

WRONG_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "GPTProvider": "GPTModelProvider",
        "T5Provider": "T5ModelProvider",
        "TPOverlapCfg": "PipelineOverlapCfg",
        "TransformerLayerTPOverlapCfg": "PipelineOverlapCfg",
    }
)
"""Classes of guides that do not exist, or do not have the fields that guides give them."""

_CORE_CLASSES = frozenset({"TransformerConfig", "DistributedDataParallelConfig", "OptimizerConfig"})
_CALLABLES = frozenset(
    {
        *("PipelineOverlapCfg", "RingExchangeOverlapCfg", "BulkOverlapCfg", "MegatronCommOverlapCallback"),
        *("MegatronMixedPrecision", "GarbageCollectionCallback"),
    }
)
_NEMO_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "MegatronStrategy": "trainer.strategy",
        "DistributedDataParallelConfig": "trainer.strategy.ddp",
        "OptimizerConfig": "optim.config",
        "GPTConfig": "model.config",
        "garbageCollectionCallback": "GarbageCollectionCallback",
    }
)
_TITAN_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "TrainingConfig": "training",
        "ParallelismConfig": "parallelism",
        "ActivationCheckpointConfig": "activation_checkpoint",
        "CompileConfig": "compile",
        "ProfilingConfig": "profiling",
        "CheckpointManager": "checkpoint",
        "OptimizersContainer": "optimizer",
        "ModelConvertersContainer": "model",
        "Float8LinearConverter": "float8",
        "CommConfig": "comm",
        "DebugConfig": "debug",
    }
)
"""torchtitan in Python: class → section of its file."""
_TRAINER_CLASSES = frozenset(
    {
        *("Seq2SeqTrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig", "KTOConfig", "ORPOConfig"),
        *("RewardConfig", "PPOConfig", "GaudiTrainingArguments"),
    }
)
"""Of Hugging Face, made from TrainingArguments."""
_ACCELERATES_FP8 = ("fp8_config", "TERecipeKwargs", "FP8RecipeKwargs", "MSAMPRecipeKwargs", "AORecipeKwargs")
_VERL_ROLES = ("actor_rollout_ref.actor.", "actor_rollout_ref.ref.", "critic.", "reward_model.")
_VERL_MODEL = "actor_rollout_ref.model."
PERFDOC_SECTIONS = frozenset(
    {
        *("model", "moe", "parallel", "overlap", "optimizer", "precision", "recompute", "kernels", "data"),
        *("training", "checkpoint", "environment", "fsdp", "profiling"),
    }
)
STEM = pattern_of(
    r"(?:(?:cfg|config|recipe|self|pretrain|finetune|job_config)\.)+|(?!model|optim|train|ddp|dist|data)[a-z]\w{0,4}\."
    r"(?=(?:trainer|model|optim|train|ddp|optimizer|dist|comm_overlap|mixed_precision|profiling|dataset)\.)"
)
"""What stands before a path in a program, and nowhere else: also the name of any short variable."""


_CLASSES: Mapping[Dialect, Mapping[str, str]] = MappingProxyType(
    {
        "megatron_bridge": BRIDGE_CLASSES,
        "nemo": _NEMO_CLASSES,
        "torchtitan": _TITAN_CLASSES,
        "accelerate": dict.fromkeys(_TRAINER_CLASSES, "TrainingArguments")
        | {"DeepSpeedPlugin": "deepspeed_config", "Accelerator": ""}
        | dict.fromkeys(("FullyShardedDataParallelPlugin", "fsdp_config"), "fsdp_config.fsdp_")
        | dict.fromkeys(_ACCELERATES_FP8, "fp8_config.fp8_")
        | {"ParallelismConfig": "parallelism_config.parallelism_config_"}
        | {"MegatronLMPlugin": "megatron_lm_config.megatron_lm_"},
    }
)


def placed(dialect: Dialect, name: str) -> tuple[str, str, str]:
    """A written path as (path in the dialect's own form, scope, wrong class or ""). The scope is a role of
    verl; settings of different roles do not belong together."""
    parts = name.split(".")
    wrong = next((p for p in parts[:-1] if p in WRONG_CLASSES), "")
    if wrong:
        parts = [WRONG_CLASSES[p] if p == wrong else p for p in parts]
    for position in range(len(parts) - 2, -1, -1):
        part, rest = parts[position], parts[position + 1 :]
        if part in _CALLABLES or (dialect == "megatron_core" and part in _CORE_CLASSES):
            return ".".join([part, *rest]), "", wrong
        table = _CLASSES.get(dialect, {})
        if part in table:
            return _within(table[part], rest), "", wrong
    path = ".".join(parts)
    stem = STEM.match(path)
    path = path[stem.end() :] if stem else path
    if dialect == "verl":
        return *_of_verl(path), wrong
    if dialect == "perfdoc" and path.partition(".")[0] in PERFDOC_SECTIONS:
        path = path.rpartition(".")[2]
    return path, "", wrong


def _within(section: str, rest: Sequence[str]) -> str:
    """A path in a section; of those that end in the beginning of their names, also without it."""
    place, _, prefix = section.partition(".") if section.endswith("_") else (section, "", "")
    key = ".".join(rest)
    has_it = not prefix or slips(key.partition("_")[0], prefix.partition("_")[0], 1) <= 1
    return f"{place}.{'' if has_it else prefix}{key}".removeprefix(".")


def _of_verl(path: str) -> tuple[str, str]:
    """Every role's settings as the actor's, with the role that they hold for."""
    if path.startswith(_VERL_MODEL):
        return path, "actor_rollout_ref"
    for role in _VERL_ROLES:
        if not path.startswith(role):
            continue
        rest = path.removeprefix(role)
        if rest.startswith("log_prob_"):  # of the reference alone
            return path, role.rstrip(".")
        if rest.startswith("model.") and not rest.startswith("model.fsdp_config."):
            return _VERL_MODEL + rest.removeprefix("model."), role.rstrip(".")
        return _VERL_ROLES[0] + rest.removeprefix("model."), role.rstrip(".")
    return path, ""
