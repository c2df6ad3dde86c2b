"""The keys that every reader of diagnosis.json may rely on (the published contract) against the schema."""

from __future__ import annotations

from typing import Any

import pytest

from perfdoc.results import json_schema

CONTRACT = {
    "Diagnosis": "schema_version perfdoc_version inputs quality ranks mfu analyses rules",
    "Input": "path sha256 format tool_version schema",
    "Quality": "code message remedy",
    "Rank": "rank device pid gpu window ledger_ns communication",
    "Gpu": "name sm_count memory_bytes",
    "Window": "kind start_ns end_ns duration_ns steps",
    "Ledger": "compute exposed_comm exposed_memcpy idle",
    "ExposedComm": "dp tp cp ep pp other unknown",
    "Idle": "host gc data dependency launch_latency unexplained",
    "Communication": "dimension transport collective count total_ns hidden_ns exposed_ns blocking_ns bytes "
    "bus_bandwidth_gbps evidence",
    "Mfu": "value reason flops_per_step step_time_ns gpus peak_flops convention",
    "Analyses": "host_gaps kernels replay norm_contention pipeline skew memory",
    "HostGapsAnalysis": "state reason host_frac causes",
    "KernelsAnalysis": "state reason classes linear_frac",
    "ReplayAnalysis": "state reason error_frac critical_path",
    "NormContentionAnalysis": "state reason signatures stalled_starts occupied_blocks suggested_sm_margin",
    "ContendedKernel": "kernel alone_ns contended_ns samples_alone samples_contended",
    "PipelineAnalysis": "state reason bubble_frac ideal_bubble_frac transfer_frac late_peer_frac",
    "SkewAnalysis": "state reason residual_ns stragglers",
    "Residual": "p5 p95",
    "Straggler": "rank dimension wait_caused_ns recurrence_frac",
    "MemoryAnalysis": "state reason devices",
    "DeviceMemory": "rank start_allocated_bytes peak_allocated_bytes peak_reserved_bytes oom_events "
    "composition",
    "RuleResult": "code title state reason evidence",
}
"""By type: keys, which never go and never change their meaning within a major version of the schema."""


@pytest.mark.parametrize("kind", CONTRACT)
def test_every_key_of_the_contract_is_published(kind: str) -> None:
    found: dict[str, Any] = json_schema()["$defs"]
    assert set(CONTRACT[kind].split()) <= set(found[kind]["properties"])
