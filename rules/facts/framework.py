"""Whose job it is: in whose words settings and changes are named."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import MEGATRONS, PYTORCHS
from perfdoc.knobs.load import catalogue
from perfdoc.results.headline import Framework

_CORES = (*MEGATRONS, "nemo1", "perfdoc")
MEGATRON_PATHS = (".megatron.", ".override_optimizer_config.", "megatron_lm_config.")
"""In paths of verl and Accelerate: read by megatron-core alone."""
_FSDP_PATH = ".fsdp_config."


def framework_of_job(captures: Sequence[CaptureMeasurement], configuration: Configuration) -> Framework:
    """Settings that were given say it, being Megatron's or PyTorch's; else what every capture shows.
    DeepSpeed and Accelerate run Megatron too: then it shows. A capture of verl that shows PyTorch alone may
    be of Megatron without its ranges. Environment variables are anybody's."""
    shown = {capture.framework for capture in captures}
    dialect = configuration.dialect
    if dialect in PYTORCHS:
        told = configuration.values.get("accelerate_distributed_type") == "MEGATRON_LM"
        return "megatron" if told or "megatron" in shown else "pytorch"
    if dialect == "verl":
        if trainer := _verls_trainer(configuration):
            return trainer
        return "megatron" if "megatron" in shown else ""
    elif dialect in _CORES:
        return "megatron"
    return "megatron" if "megatron" in shown else shown.pop() if len(shown) == 1 else ""


def _verls_trainer(configuration: Configuration) -> Framework:
    """By the engine's name, else by the section that a file names, whatever it says there; empty where it
    names none."""
    engine = configuration.values.get("verl_strategy")
    if isinstance(engine, str):
        return "megatron" if engine == "megatron" else "pytorch"
    made = [s.name for knob in configuration.written for s in catalogue()[knob].spelled("verl")]
    if any(part in name for name in made for part in MEGATRON_PATHS):
        return "megatron"
    return "pytorch" if any(_FSDP_PATH in name for name in made) else ""


def is_verls_fsdp(configuration: Configuration) -> bool:
    """Whether verl is known to train with FSDP: by the engine's name, else by FSDP's section."""
    engine = configuration.values.get("verl_strategy", "fsdp")
    known = configuration.dialect == "verl" and _verls_trainer(configuration) == "pytorch"
    return known and engine in ("fsdp", "fsdp2")
