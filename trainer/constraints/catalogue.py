"""What a constraint of the trainer is, and the knob catalogue's constraints as its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from perfdoc.knobs.check import Violation, violations
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import catalogue
from perfdoc.trainer.config.schema import Config

Rule = tuple[str, Callable[[Any, Any, str], bool], str]
"""(dotted key to name, whether (config, layout, device) breaks the rule, the rule in words)."""


def as_written(value: object) -> str:
    """A value as a person writes it in the file."""
    return value if isinstance(value, str) else json.dumps(value)


_SECTION_OF = MappingProxyType(
    {name: section for section, part in vars(Config()).items() for name in vars(part)}
)
"""Setting → its section; names are unique over all sections."""
_NOT_HERE: Mapping[str, Value] = MappingProxyType(
    {
        **{"multi_latent_attention": False, "mtp_num_layers": None, "calculate_per_token_loss": False},
        **{"optimizer_name": "adam", "position_embedding_type": "rope", "moe_enable_deepep": False},
        **{"hybrid_context_parallel": False},
    }
)
"""Knobs and facts that are no settings of the trainer, and that constraints of those that it has ask for."""

WITHOUT_EFFECT = frozenset(
    {
        "align-needs-param-gather",
        "bucket-size-needs-overlap",
        "deferral-limit-needs-deferral",
        "double-buffer-needs-fsdp",
        "fp32-sums-need-sharding",
        "gradient-reduce-div-fusion-needs-fsdp",
        "hierarchical-sizes-need-a2a-p2p",
        "offload-modules-need-switch",
        "optimizer-copies-need-offload",
        "optimizer-instances-need-sharding",
        "outer-dp-sharding-strategy-needs-fsdp",
        "outer-sharding-needs-instances",
        "overlap-p2p-needs-vpp",
        "scope-needs-graphs",
        "selective-recompute-has-no-method",
        "shared-overlap-needs-shared-experts",
        "sharding-strategy-needs-fsdp",
        "sharp-group-needs-sharp",
        "suggested-communication-unit-size-needs-fsdp",
        "symmetric-registration-needs-buffers",
        "tp-overlap-config-needs-overlap",
        "vp-group-needs-vpp",
    }
)
"""Constraints of settings without effect that stop a run, beside all that are forbidden: who sets these
expects another schedule or other messages, and would measure the ones without."""


def as_knobs(config: Config, world_size: int) -> Configuration:
    """The run as the catalogue knows it; a setting that tunes nothing has no knob and is left out."""
    settings = {name: _value(config, name) for name in _SECTION_OF}
    known = {name: value for name, value in settings.items() if name in catalogue()}
    dtype = config.precision.params_dtype
    facts = {"world_size": world_size, "bf16": dtype == "bf16", "fp16": dtype == "fp16"}
    return Configuration(values={**_NOT_HERE, **known, **facts}, dialect="perfdoc", complete=True)


def catalogue_problems(config: Config, world_size: int) -> Iterator[tuple[str, str]]:
    """(dotted key, the constraint in words and what it read) of what is refused."""
    for found in violations(as_knobs(config, world_size)):
        kind, name = ("", "") if found.constraint is None else (found.constraint.kind, found.constraint.name)
        if kind == "forbidden" or name in WITHOUT_EFFECT:
            if found.knob not in _SECTION_OF:  # a fact of this trainer, such as its optimizer
                raise ValueError(f"{found.words}{_with(config, found)}")
            yield f"{_SECTION_OF[found.knob]}.{found.knob}", found.words + _with(config, found)


def _with(config: Config, found: Violation) -> str:
    """The other settings that decided it, as far as they are on: ` (num_layers = 5)`."""
    read = sorted(found.read & _SECTION_OF.keys() - {found.knob})
    shown = [
        f"{name} = {as_written(value)}"
        for name in read
        if (value := _value(config, name)) not in (None, False, ())
    ]
    return f" ({', '.join(shown)})" if shown else ""


def _value(config: Config, name: str) -> Value:
    value: Value = getattr(getattr(config, _SECTION_OF[name]), name)
    return value
