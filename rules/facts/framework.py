"""Whose job it is: in whose words settings and changes are named."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import MEGATRONS, PYTORCHS
from perfdoc.knobs.load import catalogue
from perfdoc.results.headline import Framework

_CORES = (*MEGATRONS, "nemo1", "perfdoc")


def framework_of_job(captures: Sequence[CaptureMeasurement], configuration: Configuration) -> Framework:
    """Settings that were given say it, being Megatron's or PyTorch's; else what every capture shows.
    DeepSpeed and Accelerate run Megatron too: then it shows. Environment variables are anybody's."""
    shown = {capture.framework for capture in captures}
    dialect = configuration.dialect
    if dialect in PYTORCHS:
        told = configuration.values.get("accelerate_distributed_type") == "MEGATRON_LM"
        return "megatron" if told or "megatron" in shown else "pytorch"
    if dialect in _CORES:
        return "pytorch" if is_verls_fsdp(configuration) else "megatron"
    return "megatron" if "megatron" in shown else shown.pop() if len(shown) == 1 else ""


def is_verls_fsdp(configuration: Configuration) -> bool:
    """Whether verl trains with FSDP, or another engine that is not Megatron: by the engine's name, else
    because settings of FSDP are made and none of Megatron."""
    if configuration.dialect != "verl":
        return False
    engine = configuration.values.get("verl_strategy")
    if isinstance(engine, str):
        return engine != "megatron"
    made = [s.name for knob in configuration.values for s in catalogue()[knob].spelled("verl")]
    return any(".fsdp_config." in name for name in made) and not any(".megatron." in name for name in made)
