"""Every check of megatron-core's configuration classes is a rule here, or is listed with a reason."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from perfdoc.knobs.check import may_read
from perfdoc.knobs.constraints import constraints
from perfdoc.knobs.load import catalogue
from tests.megatron_core import import_core

CLASSES = {
    "TransformerConfig": "megatron.core.transformer.transformer_config",
    "MLATransformerConfig": "megatron.core.transformer.transformer_config",
    "ModelParallelConfig": "megatron.core.model_parallel_config",
    "DistributedDataParallelConfig": "megatron.core.distributed.distributed_data_parallel_config",
    "OptimizerConfig": "megatron.core.optimizer.optimizer_config",
}
RUNNING = "needs the running job: a version of Transformer Engine, PyTorch or what is installed"
NO_SETTING = "no setting of performance or layout"
VALUES = "the values themselves, which the catalogue has"
OTHERWISE = "said by a rule in other words"
TRAINERS = "every trainer sets it itself"
UNENCODED: Mapping[str, tuple[str, ...]] = {
    RUNNING: (
        *(
            "is_te_min_version",
            "is_torch_min_version",
            "HAVE_PACKAGING",
            "fused_permute",
            "name in adam_args",
        ),
        "fused_apply_rotary_pos_emb",
    ),
    NO_SETTING: (
        *("self.linear_", "self.activation_func", "self.attention_output_gate", "self.flash_decode"),
        *("self.moe_router_topk_limited_devices", "self.variable_seq_lengths", "self.glu_linear_offset"),
        *("self.normalization ==", "self.layernorm_zero_centered_gamma", "self.add_qkv_bias"),
        *("self.use_kitchen", "self.add_bias_linear"),
    ),
    VALUES: ("invalid_modules",),
    OTHERWISE: (
        *("any_conflict", "bool(num_layers) != bool(pipeline_parallel_size)", "pipeline_parallel_size and"),
        *("expandable_segments", "load_balancing_type not in"),
    ),
    TRAINERS: ("self.pipeline_dtype",),
}
"""Reason → parts of the conditions that it is for."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """An assertion, a refusal or a warning of one class."""

    place: str
    condition: str
    fields: frozenset[str]
    """In the condition itself."""
    around: frozenset[str]
    """With those of the condition around it."""


def fields_in(node: ast.AST) -> frozenset[str]:
    return frozenset(
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self"
    )


def checks_in(name: str, body: list[ast.stmt], above: tuple[ast.expr, ...] = ()) -> Iterator[Check]:
    for node in body:
        conditions = (*above, node.test) if isinstance(node, ast.Assert) else above
        warns = isinstance(node, ast.Expr) and ast.unparse(node).startswith("warnings.warn(")
        if (isinstance(node, (ast.Assert, ast.Raise)) or warns) and conditions:
            around = frozenset[str]().union(*(fields_in(c) for c in conditions[-2:]))
            yield Check(
                place=f"{name}:{node.lineno}",
                condition=ast.unparse(conditions[-1]),
                fields=fields_in(conditions[-1]),
                around=around,
            )
        if isinstance(node, ast.If):
            yield from checks_in(name, node.body, (*above, node.test))
            yield from checks_in(name, node.orelse, (*above, node.test))
        elif isinstance(node, (ast.For, ast.With, ast.Try)):
            yield from checks_in(name, node.body, above)
            for handler in getattr(node, "handlers", []):
                yield from checks_in(name, handler.body, above)


def all_checks() -> list[Check]:
    found = []
    for name, module in CLASSES.items():
        source = inspect.getsource(getattr(import_core(module), name).__post_init__)
        (function,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(function, ast.FunctionDef)
        found += checks_in(name, function.body)
    return found


def ids_of_fields() -> dict[str, str]:
    own = {s.name.rpartition(".")[2]: k.id for k in catalogue().values() for s in k.spelled("megatron_core")}
    old = {f.name: k.id for k in catalogue().values() for f in k.former}
    return {**old, **{name: name for name in catalogue()}, **own}


def is_encoded(check: Check, ids: Mapping[str, str]) -> bool:
    """Whether a rule reads every setting of the condition, and another one of those around it."""
    own = {ids[f] for f in check.fields if f in ids}
    around = {ids[f] for f in check.around if f in ids}
    return bool(own) and any(
        own <= may_read(c) and len(around & may_read(c)) >= min(2, len(around)) for c in constraints()
    )


def test_every_check_of_megatron_core_is_encoded_or_listed() -> None:
    ids, checks = ids_of_fields(), all_checks()
    assert len(checks) > 120, "or they are no longer found"
    left = [c for c in checks if not is_encoded(c, ids)]
    reasons = {
        c.place: [why for why, parts in UNENCODED.items() if any(part in c.condition for part in parts)]
        for c in left
    }
    assert [f"{c.place}: {c.condition}" for c in left if not reasons[c.place]] == []
    of_ours = [c for c in checks if not {RUNNING, NO_SETTING} & set(reasons.get(c.place, ()))]
    encoded = sum(is_encoded(c, ids) for c in of_ours)
    assert encoded / len(of_ours) >= 0.85, f"{encoded} of {len(of_ours)}"
