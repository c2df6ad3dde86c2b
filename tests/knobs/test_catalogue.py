"""The catalogue against itself, megatron-core's dataclasses and the trainer's settings."""

from __future__ import annotations

import dataclasses
import importlib
import re
import types
import typing
from typing import Any

from perfdoc.knobs.knob import DIALECTS, Knob
from perfdoc.knobs.load import TOPICS, catalogue
from tests.megatron_core import import_core

CLASSES = {
    "TransformerConfig": "megatron.core.transformer.transformer_config",
    "DistributedDataParallelConfig": "megatron.core.distributed.distributed_data_parallel_config",
    "OptimizerConfig": "megatron.core.optimizer.optimizer_config",
}
KINDS: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "list": (list,),
    "int_list": (list,),
    "str_or_list": (str, list),
}
"""Our type → the classes that megatron-core's annotation may name, apart from None."""


def core(name: str) -> Any:
    return getattr(import_core(CLASSES[name]), name)


def core_fields() -> list[tuple[Knob, str, str]]:
    return [
        (knob, *s.name.split(".", 1))
        for knob in catalogue().values()
        for s in knob.spelled("megatron_core")
        if s.name.split(".")[0] in CLASSES
    ]


def test_every_core_spelling_is_a_field_with_that_type_and_default() -> None:
    checked = 0
    for knob, owner, name in core_fields():
        config = core(owner)
        fields = {f.name: f for f in dataclasses.fields(config)}
        assert name in fields, f"{owner} has no {name}"
        hint = typing.get_type_hints(config)[name]
        parts = (
            typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        )
        plain = {typing.get_origin(p) or p for p in parts} - {types.NoneType}
        if knob.type in KINDS:
            assert plain & set(KINDS[knob.type]), f"{knob.id}: {hint}"
        default = fields[name].default
        if default is dataclasses.MISSING or "megatron_core" not in knob.defaults:
            continue
        ours = knob.defaults["megatron_core"]
        theirs = getattr(default, "name", default)
        if knob.type == "dtype":
            theirs = {"float32": "fp32"}[str(theirs).removeprefix("torch.")]
        assert ours == theirs, f"{knob.id}: {default}"
        checked += 1
    assert checked > 90, "or nothing was compared"


def test_former_names_are_no_field_of_core_unless_renamed_there() -> None:
    names = {f.name for c in CLASSES for f in dataclasses.fields(core(c))}
    for knob in catalogue().values():
        for former in knob.former:
            if former.kind != "renamed":
                assert former.name not in names, former.name


def test_no_two_knobs_share_a_name_and_every_entry_says_enough() -> None:
    seen: dict[tuple[str, str], str] = {}
    for knob in catalogue().values():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", knob.id)
        assert knob.title, knob.id
        assert len(knob.what) > 10, knob.id
        assert bool(knob.command) == (knob.type == "command")
        for spelling in knob.spellings:
            assert spelling.dialect in DIALECTS
            assert seen.setdefault((spelling.dialect, spelling.name), knob.id) == knob.id
            assert re.fullmatch(r"(--)?[A-Za-z][\w.-]*", spelling.name), spelling.name
        for name in (f.name for f in knob.former):
            assert seen.setdefault(("former", name), knob.id) == knob.id
        for value in knob.defaults.values():
            if knob.choices and isinstance(value, (str, int)) and not isinstance(value, bool):
                assert value in knob.choices, f"{knob.id}: {value}"
    assert {k.topic for k in catalogue().values()} == set(TOPICS)
    assert len([k for k in catalogue().values() if k.kind == "knob"]) >= 159


def test_the_trainers_settings_are_the_canonical_ids() -> None:
    # Where a setting of the trainer is a knob, type and choices of the two tables agree.
    schema = importlib.import_module("perfdoc.trainer.config.schema")
    shared = 0
    for section in dataclasses.fields(schema.Config):
        hints = typing.get_type_hints(section.default_factory, include_extras=False)  # type: ignore[arg-type]
        for name, hint in hints.items():
            knob = catalogue().get(name)
            if knob is None:
                continue
            shared += 1
            for part in typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else (hint,):
                if typing.get_origin(part) is typing.Literal and knob.choices:
                    assert set(typing.get_args(part)) <= set(knob.choices), name
                if part in (bool, int):
                    assert knob.type == part.__name__, name
    assert shared > 110
