"""Ceilings of a device: given, by its data sheet, or measured; each says where it comes from."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from perfdoc.analyzers.base.ceilings import ceilings_of
from perfdoc.profiling.measured import MeasuredCeilings, Rate
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.job_facts import JobFacts

H100 = "NVIDIA H100 80GB HBM3"


def rate(best: float, what: str = "GEMM of 1,024 x 1,024 x 1,024") -> Rate:
    return Rate(best=best, spread_frac=0.05, repeats=12, what=what)


CPU = MeasuredCeilings(
    device="Intel(R) Xeon(R)",
    kind="cpu",
    ranks=2,
    threads=1,
    flops={"fp32": rate(90e9), "bf16": rate(400e9)},
    memory={"copy": rate(9e9, "copy of 128.0 MiB"), "triad": rate(11e9, "triad of 128.0 MiB")},
    collectives={},
    missing={"fp16": "not implemented"},
    versions={"torch": "2.13.0"},
    measured_utc="2026-11-23T09:00:00Z",
)


def test_a_gpu_that_is_known_to_the_last_word_has_its_data_sheet() -> None:
    found = ceilings_of(JobFacts(), H100)
    assert {d: c.value / 1e12 for d, c in found.flops.items()} == {
        **{"bf16": 989, "fp16": 989, "fp32": 67, "fp64": 67, "fp8": 1979, "tf32": 494}
    }
    assert {c.source for c in found.flops.values()} == {"datasheet"}
    assert found.memory is not None
    assert (found.memory.value, found.memory.source) == (3350e9, "datasheet")
    assert (found.sm_count, found.reason) == (132, "")
    assert H100 in found.flops["bf16"].text


def test_ranks_on_a_cpu_have_what_was_measured_before_the_run() -> None:
    found = ceilings_of(JobFacts(measured_ceilings=CPU), "CPU")
    assert {d: (c.value, c.source) for d, c in found.flops.items()} == {
        "bf16": (400e9, "measured"),
        "fp32": (90e9, "measured"),
    }
    # The better of copy and triad.
    assert found.memory is not None
    assert (found.memory.value, found.memory.spread_frac) == (11e9, 0.05)
    for word in ("best of 12", "2 ranks at once", "1 thread each"):
        assert word in found.flops["fp32"].text
    assert found.reason == "fp16: not implemented"


def test_what_was_measured_counts_for_its_own_device_alone() -> None:
    facts = JobFacts(measured_ceilings=CPU)
    assert ceilings_of(facts, "NVIDIA RTX A1000").flops == {}
    assert ceilings_of(facts, None).memory is None
    gpu = msgspec.structs.replace(CPU, kind="cuda", device="NVIDIA RTX A1000", threads=None)
    assert set(ceilings_of(JobFacts(measured_ceilings=gpu), "NVIDIA RTX A1000").flops) == {"fp32", "bf16"}
    assert ceilings_of(JobFacts(measured_ceilings=gpu), "CPU").flops == {}


def test_a_data_sheet_goes_before_a_measurement_and_is_completed_by_it() -> None:
    """A bare `A100` does not say which memory it has: 40 GB and 80 GB differ."""
    rates = {"bf16": rate(250e12), "fp8": rate(1e12)}
    gpu = msgspec.structs.replace(CPU, kind="cuda", device="NVIDIA A100", threads=None, flops=rates)
    found = ceilings_of(JobFacts(measured_ceilings=gpu), "NVIDIA A100")
    assert (found.flops["bf16"].value, found.flops["bf16"].source) == (312e12, "datasheet")
    assert (found.flops["fp8"].value, found.flops["fp8"].source) == (1e12, "measured")
    assert found.memory is not None
    assert found.memory.source == "measured"


def test_a_given_peak_is_of_the_jobs_dtype() -> None:
    facts = given_facts(["peak_tflops=500", "dtype=bf16"])
    found = ceilings_of(facts, H100).flops
    assert (found["bf16"].value, found["bf16"].source, found["bf16"].text) == (500e12, "given", "--set")
    assert found["fp16"].source == "datasheet"
    said = replace(facts, peak_kind="measured", peak_source="measured here")
    assert ceilings_of(said, H100).flops["bf16"].source == "measured"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        (None, "do not name"),
        ("CPU", "none was measured"),
        ("NVIDIA RTX A1000", "table"),
        ("NVIDIA A100", "memory"),
    ],
)
def test_what_is_missing_has_a_reason(name: str | None, word: str) -> None:
    found = ceilings_of(JobFacts(), name)
    assert found.memory is None
    assert word in found.reason
