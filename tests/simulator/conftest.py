"""A timeline with one of everything."""

from __future__ import annotations

import pytest

from tests.captures.events import Collective, NcclPayload
from tests.captures.timeline import Timeline, TimelineBuilder

COMMUNICATOR = 13429301450432826988
"""Above 2**63: does not fit a signed column."""


def lay() -> TimelineBuilder:
    """Two processes, one GPU each; every kind of row but graph launches."""
    t = TimelineBuilder(utc_origin_ns=1_700_000_000_123_456_789)
    for rank, pid in enumerate((1000, 1001)):
        p = t.process(pid=pid, name="python", rank=rank)
        p.group("1", "DATA_PARALLEL_GROUP", (0, 1))
        th = p.thread(tid=pid + 50, name="main")
        d = p.device(rank)
        th.range("perfdoc.step 0", 0, 900)
        th.range("background", 5, 800, kind="start_end", end_thread=p.thread(tid=pid + 60, name="io"))
        th.range("never closed", 6, None)
        th.mark("here", 7)
        payload = NcclPayload(communicator=COMMUNICATOR, bytes=4096, reduction="Avg")
        th.range("ncclAllReduce", 30, 45, domain="NCCL", payload=payload)
        d.kernel("gemm", 100, 300, full_name="void gemm<bf16>(int)", grid=(3, 4, 5), launch=(th, 10, 20))
        collective = Collective(
            operation="allreduce", group_name="1", group_description="DATA_PARALLEL_GROUP", ranks=(0, 1),
            dtype="BFloat16", in_elements=2048, out_elements=2048, sequence=9,
        )  # fmt: skip
        d.kernel("ncclDevKernel_AllReduce", 200, 500, stream=20, launch=(th, 32, 40), collective=collective)
        d.copy("host_to_device", 65536, 500, 600, stream=13, launch=(th, 46, 50))
        d.memset(128, 600, 610, launch=(th, 50, 54))
        record = d.record_event(20, launch=(th, 55, 58), event=77, done_ns=500)
        d.wait_event(7, record, launch=(th, 60, 64))
        d.graph_node(th, 8589934592, 70)
        d.kernel("in_graph", 620, 640, correlation=th.api("cudaGraphLaunch", 80, 90), graph_node=8589934592)
        th.synchronize("device", 100, 640)
        p.operator(th, "aten::mm", 8, 25)
    t.diagnostic("Not all NVTX events might have been collected.", severity=2, at_ns=3)
    return t


@pytest.fixture
def timeline() -> Timeline:
    return lay().build()
