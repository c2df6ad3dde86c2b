"""Real captures whose NCCL kernels were given names that nobody knows."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from tests.amount import some


def nameless(capture: Path, folder: Path, what: str = "nccl") -> Path:
    """A copy in which nothing is called NCCL; what: or only no kernel."""
    copy = folder / capture.name
    shutil.copyfile(capture, copy)
    with closing(sqlite3.connect(copy)) as file:
        file.execute(
            "UPDATE StringIds SET value = 'void zq::k' || id || '(int*)' WHERE value LIKE 'nccl%ernel%'"
        )
        if what == "nccl":
            file.execute("UPDATE StringIds SET value = 'range ' || id WHERE value LIKE 'nccl%'")
            # torch's range around a collective, and those inside of it, name it as well.
            like = " OR ".join(f"text LIKE '{word}%'" for word in ("nccl", "record_param", "c10d::"))
            file.execute(f"UPDATE NVTX_EVENTS SET text = 'range' WHERE {like}")
        file.commit()
    return copy


def test_the_calls_around_launches_name_what_kernels_do_not(shared_traces: Path, tmp_path: Path) -> None:
    capture = shared_traces / "nsys" / "ddp_2gpu_rtx3090.sqlite"
    copy = nameless(capture, tmp_path, "kernels")
    true = measure_capture(capture, WindowRequest()).ranks
    for rank, known in zip(measure_capture(copy, WindowRequest()).ranks, true, strict=True):
        assert rank.ledger.exposed_comm == known.ledger.exposed_comm
        assert known.ledger.exposed_comm.dp > 0


@pytest.mark.parametrize(
    ("name", "found_frac"),
    some(
        [
            ("ddp_2gpu_rtx3090", 0.85),  # a few calls at start-up are too few to tell
            ("sp_2gpu_after", 1.0),  # on the stream that computes
        ],
        lambda case: case[0] == "ddp_2gpu_rtx3090",
    ),
)
def test_communication_without_a_known_name_is_suspected(
    shared_traces: Path, tmp_path: Path, name: str, found_frac: float
) -> None:
    capture = shared_traces / "nsys" / f"{name}.sqlite"
    copy = nameless(capture, tmp_path)
    true = measure_capture(capture, WindowRequest()).ranks
    for rank, known in zip(measure_capture(copy, WindowRequest()).ranks, true, strict=True):
        exposed = known.ledger.exposed_comm.total
        assert rank.ledger.exposed_comm.total == 0
        # Nothing that computes is suspected with it.
        assert found_frac * exposed <= rank.suspected.alone_ns <= exposed
        assert {"zq::k"} == {k.short_name[:5] for k in rank.suspected.kernels}
        assert known.suspected.kernels == []
    # The user's word gives the very ledger that the known names gave.
    settled = measure_capture(copy, WindowRequest(), comm_kernel=re.compile("zq::k")).ranks
    for rank, known in zip(settled, true, strict=True):
        assert rank.ledger.compute == known.ledger.compute
        assert rank.ledger.exposed_comm.total == known.ledger.exposed_comm.total
