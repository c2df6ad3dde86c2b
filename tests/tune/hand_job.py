"""A job to tune, around the model made by hand: 4 GPUs, 2 stages of 2 layers, 4 micro-batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfdoc.knobs.configuration import Configuration
from perfdoc.profiling.manifest import ModelShape
from perfdoc.results.memory import MemoryAnalysis
from perfdoc.simulator.job.predict import Models
from perfdoc.traces import Device
from perfdoc.traces.job_facts import JobFacts
from perfdoc.tune.job import Job, memory_of
from tests.reports.build import NO_MFU
from tests.simulator.hand_model import model

NO_MEMORY = MemoryAnalysis(state="not_measured", reason="", remedy="", devices=[], processes=[])
SHAPE = ModelShape(
    name="tiny",
    layers=4,
    hidden_size=1024,
    ffn_hidden_size=4096,
    attention_heads=8,
    query_groups=8,
    kv_channels=128,
    vocabulary=1000,
    sequence_length=2048,
    gated_mlp=False,
)


def facts(**changed: Any) -> JobFacts:
    known: dict[str, Any] = {
        "world_size": 4,
        "tp": 1,
        "cp": 1,
        "pp": 2,
        "dp": 2,
        "micro_batches": 4,
        "micro_batch_sequences": 1,
        "global_batch_sequences": 8,
        "sequence_length": 2048,
        "model": SHAPE,
    }
    return JobFacts(**(known | changed))


def device(memory_bytes: int | None = None) -> Device:
    return Device(process=1, ordinal=0, gpu_name="H100", sm_count=132, memory_bytes=memory_bytes, uuid="")


def job(*, memory_bytes: int | None = None, known: JobFacts | None = None, **values: Any) -> Job:
    made, known = model(), known or facts()
    configuration = Configuration(
        values={
            "world_size": 4,
            "tensor_model_parallel_size": 1,
            "context_parallel_size": 1,
            "pipeline_model_parallel_size": 2,
            "data_parallel_size": 2,
            "num_layers": 4,
            "micro_batch_size": 1,
            "global_batch_size": 8,
            **values,
        },
        dialect="megatron_lm",
    )
    return Job(
        models=Models(model=replace(made, shape=SHAPE), others=()),
        facts=known,
        configuration=configuration,
        memory=memory_of(
            made.settings, known, configuration, devices=[device(memory_bytes)], measured=NO_MEMORY
        ),
        mfu=NO_MFU,
        captured=2,
        notes=(),
    )
