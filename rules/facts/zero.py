"""Which ZeRO stage a job of DeepSpeed has, alone or under Accelerate."""

from __future__ import annotations

from perfdoc.knobs.configuration import Configuration
from perfdoc.rules.facts.framework import accelerates_way

_BY_DEFAULT = {"deepspeed": 0, "accelerate": 2}
"""DeepSpeed's file holds every setting; `accelerate launch` takes stage 2 where none is named."""


def zero_stage(configuration: Configuration) -> int | None:
    """0 to 3; None without DeepSpeed, and where it is not known, as in the file that Accelerate names."""
    dialect, stage = configuration.dialect, configuration.values.get("zero_stage")
    if isinstance(stage, int):
        return stage
    if dialect == "accelerate" and (not uses_deepspeed(configuration) or has_own_file(configuration)):
        return None
    return None if "zero_stage" in configuration.unknown else _BY_DEFAULT.get(dialect or "")


def uses_deepspeed(configuration: Configuration) -> bool:
    """Whether DeepSpeed is known to run the job."""
    return configuration.dialect == "deepspeed" or accelerates_way(configuration) == "DEEPSPEED"


def has_own_file(configuration: Configuration) -> bool:
    """Whether settings of DeepSpeed can stand in a file of its own: always, but for Accelerate's few."""
    name = "accelerate_deepspeed_file"
    if configuration.dialect != "accelerate":
        return configuration.dialect == "deepspeed"
    return name in configuration.unknown or configuration.values.get(name) is not None


def overlaps_comm(configuration: Configuration) -> bool | None:
    """Whether ZeRO overlaps its communication: as set, else in stage 3 alone. None where it is not known."""
    knob, stage = "zero_overlap_comm", zero_stage(configuration)
    if isinstance(said := configuration.values.get(knob), bool):
        return said
    return None if stage is None or knob in configuration.unknown else stage == 3
