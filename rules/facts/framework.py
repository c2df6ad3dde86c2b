"""Whose job it is, in whose words settings and changes are named, and how its framework runs it."""

from collections.abc import Callable, Sequence
from typing import Literal

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import MEGATRONS, PYTORCHS
from perfdoc.knobs.load import catalogue
from perfdoc.results.headline import Framework
from perfdoc.results.memory import MemoryAnalysis

_CORES = (*MEGATRONS, "perfdoc")
_MEGATRON_PATHS = (".megatron.", ".override_optimizer_config.", "megatron_lm_config.")
_FSDP_PATH = ".fsdp_config."
_PP = "pipeline_model_parallel_size"
_STAGE_BY_DEFAULT = {"deepspeed": 0, "accelerate": 2}
"""DeepSpeed's file holds every setting; `accelerate launch` takes stage 2 where none is named."""


def framework_of_job(
    captures: Sequence[CaptureMeasurement], configuration: Configuration, memory: MemoryAnalysis | None = None
) -> Framework:
    """Settings that were given say it, being Megatron's or PyTorch's; else what every capture shows, and
    without captures the files that a memory snapshot names.
    DeepSpeed and Accelerate run Megatron too: then it shows. A capture of verl that shows PyTorch alone may
    be of Megatron without its ranges. Environment variables are anybody's."""
    shown = {capture.framework for capture in captures} or _of_memory(memory)
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


def _of_memory(memory: MemoryAnalysis | None) -> set[Framework]:
    """By the files that allocated what was there at the peak."""
    devices = memory.devices if memory is not None else ()
    files = [site.file for device in devices for site in device.sites if site.file]
    if not files:
        return set()
    return {"megatron" if any("megatron" in file for file in files) else "pytorch"}


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


def zero_stage(configuration: Configuration) -> int | None:
    """0 to 3; None without DeepSpeed, and where it is not known, as in the file that Accelerate names."""
    dialect, stage = configuration.dialect, configuration.values.get("zero_stage")
    if isinstance(stage, int):
        return stage
    if dialect == "accelerate" and (not uses_deepspeed(configuration) or has_own_file(configuration)):
        return None
    return None if "zero_stage" in configuration.unknown else _STAGE_BY_DEFAULT.get(dialect or "")


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


def titans_micro_batch(
    configuration: Configuration,
) -> Literal["local_batch_size", "pipeline_microbatch_size"] | None:
    """With a pipeline the samples of a rank are cut once more. None where whether there is one is not known;
    a file that does not name it has none."""
    if _PP in configuration.unknown:
        return None
    pp = configuration.values.get(_PP)
    return "pipeline_microbatch_size" if isinstance(pp, int) and pp > 1 else "local_batch_size"
