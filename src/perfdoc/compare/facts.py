"""What must be equal for two runs to be comparable: hardware, versions, configuration."""

from __future__ import annotations

import fnmatch
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from perfdoc.profiling.manifest import Manifest

Fact: TypeAlias = str | int | float | bool | None
Facts: TypeAlias = dict[str, Fact]

OF_NO_STEADY_STEP = (
    *("data_cache", "train_iters", "seed", "eval_interval", "eval_iters"),
    *("save", "save_interval", "keep_checkpoints", "load", "load_step", "load_weights_only"),
    *("lr_warmup_iters", "lr_decay_iters"),
)
"""Keys of the configuration that say how long a run is and where its files lie."""
NOT_COMPARED = (
    *OF_NO_STEADY_STEP,
    *("text", "tokenizer", "data_path", "split", "distributed_timeout_minutes"),
)
"""Keys of the configuration that are left out of the facts."""
OF_A_LOG = "log_interval"
"""The fact that every log has, and no run directory."""
_PYTHON_OWN = frozenset({"perfdoc", "msgspec"})
"""Packages that measure, not train."""


def facts_of(manifest: Manifest) -> Facts:
    """The facts of a run of perfdoc's trainer, flat, by name."""
    facts: Facts = {"device": manifest.device, "dtype": manifest.dtype}
    hardware = manifest.hardware
    facts |= {"hardware.nodes": hardware.nodes, "hardware.cpu": hardware.cpu}
    facts |= {"hardware.cpu_count": hardware.cpu_count, "layout.world_size": manifest.layout.world_size}
    kinds = Counter(f"{gpu.name}, {gpu.sm_count} SMs" for gpu in hardware.gpus)
    facts |= {f"hardware.gpus.{name}": count for name, count in kinds.items()}
    facts |= {f"versions.{k}": v for k, v in manifest.versions.items() if k not in _PYTHON_OWN}
    facts |= {f"environment.{k}": v for k, v in manifest.environment.items()}
    for key, setting in manifest.config.items():
        if key not in NOT_COMPARED:
            facts[f"config.{key}"] = _plain(setting.value)
    return dict(sorted(facts.items()))


def _plain(value: object) -> Fact:
    """Lists and the like as their JSON text."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return msgspec.json.encode(value, order="sorted").decode()


def fingerprint(facts: Mapping[str, Fact]) -> str:
    """Twelve hexadecimal digits that stand for the facts."""
    return hashlib.sha256(msgspec.json.encode(dict(facts), order="sorted")).hexdigest()[:12]


def differences(
    a: Mapping[str, Fact], b: Mapping[str, Fact], ignored: Sequence[str] = ()
) -> dict[str, tuple[Fact, Fact]]:
    """Facts that differ, by name; one that only one side has is None on the other.

    ignored: patterns of names that do not count, such as `versions.*`. A log need not say what ran: of two
    logs, what one of them does not say does not count either (see `unsaid`).

    >>> differences({"versions.torch": "2.12", "dtype": "bf16"}, {"versions.torch": "2.13", "dtype": "bf16"})
    {'versions.torch': ('2.12', '2.13')}
    """
    left_out = unsaid(a, b)
    return {
        name: (a.get(name), b.get(name))
        for name in sorted({*a, *b}.difference(left_out))
        if a.get(name) != b.get(name) and not any(fnmatch.fnmatchcase(name, p) for p in ignored)
    }


def unsaid(a: Mapping[str, Fact], b: Mapping[str, Fact]) -> list[str]:
    """Facts that only one of two logs says; none where one of the two is no log.

    >>> log = {"trainer": "nemo", "log_interval": 1}
    >>> unsaid(log, {**log, "config.seq_length": 4096})
    ['config.seq_length']
    """
    if OF_A_LOG not in a or OF_A_LOG not in b:
        return []
    return sorted(name for name in {*a}.symmetric_difference(b) if name != "label")


def of_the_machine(facts: Mapping[str, Fact]) -> Facts:
    """Hardware, versions and layout, without the configuration."""
    return {name: value for name, value in facts.items() if not name.startswith("config.")}


def in_words(differ: Mapping[str, tuple[Fact, Fact]]) -> list[str]:
    """Each difference as one reads it: "versions.torch: 2.12 → 2.13"."""
    return [f"{name}: {a} → {b}" for name, (a, b) in differ.items()]
