"""Passes and optimizers by the words that people put around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.device.view import DeviceView, optimizer_starts
from perfdoc.analyzers.pipeline.passes import pass_ranges
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import one_gpu


def steps(folder: Path, *names: str) -> DeviceView:
    """Two steps of 1000 ns; in each a range of each name, 100 ns apart from the next, of 80 ns."""
    builder, thread, device = one_gpu()
    for n in range(2):
        thread.range(f"ProfilerStep#{n}", 1000 * n, 1000 * (n + 1))
        for i, name in enumerate(names):
            thread.range(name, 1000 * n + 100 * i + 10, 1000 * n + 100 * i + 90)
        device.kernel(GEMM, 1000 * n + 500, 1000 * n + 900, launch=(thread, 1000 * n + 20, 1000 * n + 30))
    return view_of(builder, folder)


def passes(view: DeviceView) -> list[tuple[int, bool]]:
    """(start, whether it is a forward)."""
    rows, is_forward = pass_ranges(view)
    return list(zip(view.trace.ranges.start_ns[rows].tolist(), is_forward.tolist(), strict=True))


@pytest.mark.parametrize(
    ("forward", "backward"),
    [("## forward ##", "## backward ##"), ("forward pass", "Backward Pass"), ("FORWARD_PASS", "BACKWARD")],
)
def test_words_alone_name_passes(tmp_path: Path, forward: str, backward: str) -> None:
    found = passes(steps(tmp_path, forward, backward, "forward:mlp", "backward hooks"))
    assert found == [(10, True), (110, False), (1010, True), (1110, False)]


@pytest.mark.parametrize(
    "names",
    [
        # A layer's each, or an evaluation's: no passes of micro-batches.
        ("forward", "forward", "forward", "backward"),
        ("forward", "forward", "forward", "backward", "backward", "backward"),
        ("## forward ##",),
        ("## backward ##",),
        # Parts of one, not the whole.
        ("## forward:over_arch ##", "SliceBackward"),
    ],
)
def test_words_that_do_not_pair_name_none(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert passes(steps(tmp_path, *names)) == []


def test_our_own_names_and_megatrons_go_before_words(tmp_path: Path) -> None:
    assert passes(steps(tmp_path, "forward", "backward", "forward_step", "backward_step"))[:2] == [
        (210, True),
        (310, False),
    ]


@pytest.mark.parametrize(
    ("names", "starts"),
    [
        (("## optimizer ##",), [10, 1010]),
        (("optimizer step", "optimizer.zero_grad"), [10, 1010]),
        # PyTorch's own name is nearer to it than what lies around it.
        (("## optimizer ##", "Optimizer.step#SGD.step"), [110, 1110]),
        (("optimizer state",), []),
    ],
)
def test_optimizers(tmp_path: Path, names: tuple[str, ...], starts: list[int]) -> None:
    assert optimizer_starts(steps(tmp_path, *names)).tolist() == starts
