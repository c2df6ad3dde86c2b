"""The catalogue's constraints and the trainer's own: they forbid no run that the trainer starts."""

from __future__ import annotations

import dataclasses
import random
import typing
from types import UnionType
from typing import Any

from perfdoc.knobs.check import violations
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.load import catalogue
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.layout import plan
from tests.amount import tries

SIZES = (1, 2, 4, 8)
SETTINGS: dict[str, tuple[Any, ...]] = {
    "num_layers": (4, 8),
    "num_attention_heads": (8,),
    "num_query_groups": (2, 8),
    "recompute_num_layers": (None, 1),
    "micro_batch_size": (1, 2),
    "global_batch_size": (16, 32),
    "moe_router_topk": (1, 2),
    "num_moe_experts": (None, 4, 8),
    "bucket_size": (None, 1000),
    "hidden_size": (64,),
    "ffn_hidden_size": (64,),
    "cpu_offloading_num_layers": (0, 2),
    "pytorch_cuda_alloc_conf": (None, "expandable_segments:True"),
    "moe_expert_capacity_factor": (None, 1.0),
    "recompute_modules": ((), ("core_attn",), ("moe_act",)),
    "cuda_graph_scope": ((), ("full_iteration",)),
}

TRAINER_LETS_PASS = frozenset({"capacity-excludes-sinkhorn"})
"""What megatron-core refuses, and the trainer's own table does not name."""


def drawn(rng: random.Random) -> Config:
    """A configuration with some knobs drawn at random, the others at their defaults."""
    sections = {}
    for section in dataclasses.fields(Config):
        kind: Any = section.default_factory
        hints = typing.get_type_hints(kind)
        values = {}
        for name, hint in hints.items():
            if name in catalogue() and rng.random() < 0.12:
                values[name] = one_of(rng, name, hint)
        sections[section.name] = kind(**{k: v for k, v in values.items() if v is not ...})
    return Config(**sections)


def one_of(rng: random.Random, name: str, hint: Any) -> Any:
    if name in SETTINGS:
        return rng.choice(SETTINGS[name])
    parts = typing.get_args(hint) if typing.get_origin(hint) is UnionType else (hint,)
    part = rng.choice(parts)
    if part is type(None):
        return None
    if typing.get_origin(part) is typing.Literal:
        return rng.choice(typing.get_args(part))
    if part is bool:
        return rng.random() < 0.5
    return rng.choice(SIZES) if part is int else ...


def test_what_the_trainer_starts_is_not_forbidden() -> None:
    rng = random.Random(2)
    started = 0
    for _ in range(tries(400, 4000)):
        config = drawn(rng)
        try:
            plan(config, 8, "cuda")
        except ValueError:
            continue
        started += 1
        values = {
            name: getattr(getattr(config, section.name), name)
            for section in dataclasses.fields(Config)
            for name in typing.get_type_hints(section.default_factory)
            if name in catalogue()
        }
        values["world_size"] = 8
        job = Configuration(values=values, dialect="perfdoc", complete=True)
        forbidden = {
            v.constraint.name for v in violations(job) if v.constraint and v.constraint.kind == "forbidden"
        }
        assert forbidden <= TRAINER_LETS_PASS, f"{forbidden}: {values}"
    assert started > tries(20, 200)
