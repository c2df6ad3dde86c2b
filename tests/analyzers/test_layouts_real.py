"""Dimensions of real captures: what is left unknown of each, and of published jobs without groups' names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.communication.calls import collective_calls
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.layout.degrees import find_degrees
from perfdoc.analyzers.layout.job_uses import RankUses, group_uses
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import read_trace
from tests.analyzers.device_views import views_of


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        # Sharded embeddings exchange for no dimension.
        ("kineto/dlrm_layernorm_a100_rank3of8.json.gz", {"unknown": 0.80, "dp": 0.20}),
        ("kineto/dlrm_8gpu_v100_rank0.pt.trace.json.gz", {"unknown": 0.69, "dp": 0.31}),
        ("kineto/ddp_nccl_metadata_a100_rank0of2.json.gz", {"dp": 1.0}),
        ("kineto/vllm_moe_tp8_b200_rank0.json.gz", {"tp": 1.0}),
        ("nsys/ddp_2gpu_rtx3090.sqlite", {"dp": 1.0}),
        # Sequence parallelism around attention (Ulysses), with no name that says so.
        ("nsys/sp_2gpu_before.sqlite", {"cp": 1.0}),
        ("nsys/sp_2gpu_after.sqlite", {"cp": 1.0}),
        ("strangers/ddp_resnet_4gpu_rocm_one_file.json.gz", {"dp": 1.0}),
        # Before its steps five kernels without notes.
        ("strangers/ddp_resnet_mi300x_rank0of8.json.gz", {"dp": 0.66, "unknown": 0.34}),
        ("strangers/megatron_gpt_forward_tp8_a100/rank0.json.gz", {"tp": 1.0}),
        ("jobs/production_8gpu_pp4_dp2/rank0.pt.trace.json.gz", {"pp": 0.91, "other": 0.02, "dp": 0.07}),
    ],
)
def test_shares_of_communication(shared_traces: Path, name: str, shares: dict[str, float]) -> None:
    """Of the kernels' summed time."""
    time_ns = np.zeros(len(DIMENSIONS))
    for view in views_of(read_trace(shared_traces / name)):
        comm = view.activity.communication
        np.add.at(time_ns, comm.dimension, comm.end_ns - comm.start_ns)
    found = dict(zip(DIMENSIONS, (time_ns / time_ns.sum()).tolist(), strict=True))
    assert {d: round(share, 2) for d, share in found.items() if share >= 0.005} == pytest.approx(
        shares, abs=0.02
    )


DROPPED = ("Process Group Description", "Process Group Ranks", "Process Group Name")


@pytest.mark.parametrize("dropped", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("job", "degrees"),
    [
        ("production_8gpu_pp4_dp2", {"world_size": 8, "pp": 4, "dp": 2, "tp": 1, "cp": 1, "ep": 1}),
        # Of 128 ranks every other one was recorded: two share a layer.
        ("production_128gpu_pp2_dp32", {"world_size": 128, "pp": 2, "dp": 32, "tp": 2, "cp": 1, "ep": 1}),
    ],
)
def test_published_jobs(
    shared_traces: Path, tmp_path: Path, job: str, degrees: dict[str, int], dropped: int
) -> None:
    """With everything, without descriptions of groups, without their ranks too, with their sizes alone."""
    ranks = []
    for i, source in enumerate(sorted((shared_traces / "jobs" / job).glob("*.gz"))[:8]):
        content = json.loads(gzip.decompress(source.read_bytes()))
        for event in content["traceEvents"]:
            for name in DROPPED[:dropped]:
                event.get("args", {}).pop(name, None)
        path = tmp_path / f"{i}.json"
        path.write_text(json.dumps(content))
        trace = read_trace(path)
        (view,) = views_of(trace)
        ranks.append(RankUses(rank=view.device.rank, uses=group_uses(view, collective_calls(view))))
    assert {d.name: d.ranks for d in find_degrees(ranks, JobFacts(), degrees["world_size"])} == degrees
