from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.activity import graph_coverage
from perfdoc.traces.model import Capability
from perfdoc.traces.nsys.read import read_nsys_sqlite
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import one_gpu


def test_nodes_and_kernels_of_a_graph_launch_count(tmp_path: Path) -> None:
    # 40 ns by themselves, 30 with a node id, 30 launched by a graph launch whose nodes are not told.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 40, launch=(thread, 0, 0))
    device.kernel(GEMM, 40, 70, graph_node=9)
    call = thread.api("cudaGraphLaunch", 10, 20)
    device.kernel(GEMM, 70, 85, correlation=call)
    device.kernel(GEMM, 85, 100, correlation=call)
    view = view_of(builder, tmp_path)
    found = graph_coverage(view)
    assert (found.state, found.kernels, found.graph_kernels) == ("measured", 4, 3)
    assert graph_coverage(without_nodes(view)) == found  # Some kernels of graphs were seen all the same.
    assert (found.time_frac, found.kernel_frac) == (0.6, 0.75)
    assert (found.whole_graphs, found.kernel_ns, found.graph_ns) == (0, 100, 60)


def test_a_graph_traced_as_a_whole_has_time_and_no_kernels(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 25, launch=(thread, 0, 0))
    device.graph_launch(1, 25, 100, launch=(thread, 5, 8))
    found = graph_coverage(view_of(builder, tmp_path))
    assert (found.time_frac, found.kernel_frac, found.whole_graphs) == (0.75, None, 1)
    assert found.reason
    assert "--cuda-graph-trace=node" in found.remedy


def test_none_is_a_measurement_unless_graphs_cannot_be_told(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 25, launch=(thread, 0, 0))
    thread.api("cudaGraphLaunch", 30, 35)
    view = view_of(builder, tmp_path)
    found = graph_coverage(view)
    assert (found.state, found.time_frac, found.kernel_frac) == ("measured", 0.0, 0.0)
    # The same where the capture cannot tell nodes: a graph was launched, and its kernels are unknown.
    blind = graph_coverage(without_nodes(view))
    assert (blind.state, blind.time_frac, blind.reason) == ("not_measured", None, "nodes are not told")


def without_nodes(view: DeviceView) -> DeviceView:
    missing = Capability(available=False, reason="nodes are not told")
    return replace(
        view, trace=replace(view.trace, capabilities={**view.trace.capabilities, "graph_nodes": missing})
    )


def test_a_real_capture_of_whole_graphs(shared_traces: Path) -> None:
    (view,) = views_of(read_nsys_sqlite(shared_traces / "nsys" / "cuda_graph_a100.sqlite"))
    found = graph_coverage(view)
    assert (found.kernels, found.graph_kernels, found.whole_graphs) == (30, 0, 10)
    assert found.time_frac is not None
    assert 0.9999 < found.time_frac < 1
