"""Whose job it is: in whose words settings and changes are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import MEGATRONS, PYTORCHS
from perfdoc.knobs.load import catalogue
from perfdoc.results.headline import Framework

_CORES = (*MEGATRONS, "perfdoc")
_MEGATRON_PATHS = (".megatron.", ".override_optimizer_config.", "megatron_lm_config.")
_FSDP_PATH = ".fsdp_config."


def framework_of_job(captures: Sequence[CaptureMeasurement], configuration: Configuration) -> Framework:
    """Settings that were given say it, being Megatron's or PyTorch's; else what every capture shows.
    DeepSpeed and Accelerate run Megatron too: then it shows. A capture of verl that shows PyTorch alone may
    be of Megatron without its ranges. Environment variables are anybody's."""
    shown = {capture.framework for capture in captures}
    dialect = configuration.dialect
    if dialect in PYTORCHS:
        told = accelerates_way(configuration) == "MEGATRON_LM"
        return "megatron" if told or "megatron" in shown else "pytorch"
    if dialect == "verl":
        if trainer := _verls_trainer(configuration):
            return trainer
        return "megatron" if "megatron" in shown else ""
    if dialect in _CORES:
        return "megatron"
    return "megatron" if "megatron" in shown else shown.pop() if len(shown) == 1 else ""


def accelerates_way(configuration: Configuration) -> str:
    """How Accelerate runs a job: MULTI_GPU (DDP), FSDP, DEEPSPEED or MEGATRON_LM; empty where that is not
    known, and without Accelerate."""
    if configuration.dialect != "accelerate":
        return ""
    return str(configuration.values.get("accelerate_distributed_type") or "")


def _verls_trainer(configuration: Configuration) -> Framework:
    """By the engine's name, else by the section that a file names, whatever it says there; empty where it
    names none."""
    engine = configuration.values.get("verl_strategy")
    if isinstance(engine, str):
        return "megatron" if engine == "megatron" else "pytorch"
    if _names_section(configuration, is_megatrons_path):
        return "megatron"
    return "pytorch" if _names_section(configuration, lambda path: _FSDP_PATH in path) else ""


def _names_section(configuration: Configuration, inside: Callable[[str], bool]) -> bool:
    """Whether a name that was written lies in a section, or every name of a setting does."""
    spelled = [catalogue()[knob].spelled("verl") for knob in configuration.written]
    return any(map(inside, configuration.paths)) or any(
        names and all(inside(s.name) for s in names) for names in spelled
    )


def may_have_megatrons_buckets(framework: Framework) -> bool:
    """Whether gradients may be in megatron-core's buckets, not in DDP's or ZeRO's: a job whose framework is
    unknown may be Megatron's. A server has none."""
    return framework in ("megatron", "")


def is_megatrons_path(text: str) -> bool:
    """Whether a path of verl's or Accelerate's is read by megatron-core alone."""
    return any(part in text for part in _MEGATRON_PATHS)


def is_verls_fsdp(configuration: Configuration) -> bool:
    """Whether verl is known to train with FSDP: by the engine's name, else by FSDP's section."""
    engine = configuration.values.get("verl_strategy", "fsdp")
    known = configuration.dialect == "verl" and _verls_trainer(configuration) == "pytorch"
    return known and engine in ("fsdp", "fsdp2")
