"""Which kernel owns a nanosecond of compute, and where its time goes: at the peak, or lost by a cause."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.efficiency.bounds import fusible_ns
from perfdoc.analyzers.efficiency.partition import PARTS, Losses, busy_sm_frac, owned_ns, partition
from perfdoc.analyzers.efficiency.roofline import rooflines
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.work.operator_work import DTYPES, KernelWork
from perfdoc.results.ceilings import Ceiling, Ceilings
from perfdoc.results.efficiency import KernelEfficiency
from perfdoc.traces import TraceError


def ceiling(value: float) -> Ceiling:
    return Ceiling(value=value, source="datasheet", text="planted")


CEILINGS = Ceilings(
    device="planted",
    flops={"fp32": ceiling(10e12), "tf32": ceiling(50e12), "bf16": ceiling(100e12), "fp8": ceiling(200e12)},
    memory=ceiling(1e12),
    sm_count=100,
    reason="",
)
"""1 us is 100 MFLOP of BF16, 10 MFLOP of FP32, and 1 MB."""


def work(*kernels: tuple[float, float, str]) -> KernelWork:
    """FLOPs, bytes and dtype of each."""
    none = np.full(len(kernels), -1, np.int64)
    return KernelWork(
        flops=np.array([k[0] for k in kernels], np.float64),
        bytes=np.array([k[1] for k in kernels], np.float64),
        dtype=np.array([DTYPES.index(k[2]) for k in kernels], np.int64),
        source=np.zeros(len(kernels), np.int64),
        operator=none,
        operators=(),
        call=none,
    )


def parted(
    kernel: tuple[float, float, str],
    duration_ns: int,
    *,
    matrix: bool = True,
    owned_ns: int | None = None,
    job: str | None = "bf16",
    contention_ns: int = 0,
    busy: float = 1.0,
    recomputed: bool = False,
    clock: float = 1.0,
) -> dict[str, int]:
    duration = np.array([duration_ns], np.int64)
    found = partition(
        duration if owned_ns is None else np.array([owned_ns], np.int64),
        duration,
        rooflines(work(kernel), np.array([matrix]), duration, CEILINGS, job),
        Losses(
            recomputed=np.array([recomputed]),
            contention_ns=np.array([contention_ns], np.int64),
            busy_sm_frac=np.array([busy]),
            clock_frac=np.array([clock]),
        ),
    )
    assert found.shape == (1, len(PARTS))
    return {name: ns for name, ns in zip(PARTS, found[0].tolist(), strict=True) if ns}


def test_a_bf16_gemm_runs_at_the_peak_and_below_it() -> None:
    """600 MFLOP are 6 us, 2 MB are 2 us, it took 10 us."""
    assert parted((600e6, 2e6, "bf16"), 10_000) == {"at_peak": 6_000, "below_roofline": 4_000}


def test_an_fp32_gemm_loses_by_its_precision() -> None:
    """60 MFLOP: 6 us in FP32, 0.6 us in BF16."""
    assert parted((60e6, 1e6, "fp32"), 8_000) == {"at_peak": 600, "precision": 5_400, "below_roofline": 2_000}
    assert parted((60e6, 1e6, "fp32"), 8_000, job=None)["precision"] == 5_400
    assert parted((300e6, 1e6, "tf32"), 8_000, job="fp32") == {
        "at_peak": 3_000,
        "precision": 3_000,
        "below_roofline": 2_000,
    }


def test_a_bf16_gemm_of_an_fp8_job_is_held_against_fp8_and_an_fp8_one_of_a_bf16_job_against_itself() -> None:
    assert parted((600e6, 0, "bf16"), 10_000, job="fp8")["precision"] == 3_000
    assert parted((600e6, 0, "fp8"), 10_000) == {"at_peak": 3_000, "below_roofline": 7_000}


def test_memory_bounds_a_thin_gemm_and_everything_that_is_no_gemm() -> None:
    """100 MFLOP are 1 us, 5 MB are 5 us. A norm's FLOPs are held against nothing."""
    assert parted((100e6, 5e6, "bf16"), 8_000) == {
        "at_peak": 1_000,
        "memory_bound": 4_000,
        "below_roofline": 3_000,
    }
    assert parted((100e6, 5e6, "bf16"), 8_000, matrix=False) == {
        "memory_bound": 5_000,
        "below_roofline": 3_000,
    }


def test_contention_and_shape_take_from_what_is_left() -> None:
    """4 us at the peak; on three quarters of the SMs 5,333 ns: 1,333 more. Contention 1 us."""
    kernel = (400e6, 1e6, "bf16")
    assert parted(kernel, 10_000, contention_ns=1_000, busy=0.75) == {
        "at_peak": 4_000,
        "contention": 1_000,
        "shape": 1_333,
        "below_roofline": 3_667,
    }
    assert parted(kernel, 5_000, contention_ns=9_000, busy=0.5) == {"at_peak": 4_000, "contention": 1_000}


def test_a_lower_clock_takes_its_share_of_what_computes() -> None:
    """10 us at four fifths of the highest clock: 8 us there, of which 6 are FLOPs. HBM keeps its pace."""
    assert parted((600e6, 2e6, "bf16"), 10_000, clock=0.8) == {
        "at_peak": 6_000,
        "clock": 2_000,
        "below_roofline": 2_000,
    }
    thin = parted((100e6, 2e6, "bf16"), 10_000, clock=0.8)
    assert thin == {"at_peak": 1_000, "memory_bound": 1_000, "below_roofline": 8_000}


def test_recomputed_work_is_lost_whatever_its_rate() -> None:
    assert parted((600e6, 2e6, "bf16"), 10_000, recomputed=True) == {"recomputation": 10_000}


def test_a_kernel_that_owns_half_of_its_time_loses_half_of_each() -> None:
    assert parted((600e6, 2e6, "bf16"), 10_000, owned_ns=5_000) == {"at_peak": 3_000, "below_roofline": 2_000}


@pytest.mark.parametrize(
    ("kernel", "matrix"),
    [
        ((float("nan"), 5e6, "bf16"), True),
        ((600e6, 5e6, "unknown"), True),
        ((600e6, float("nan"), "bf16"), False),
        ((2_000e6, 1e6, "bf16"), True),
    ],
    ids=["no FLOPs of a GEMM", "no dtype", "no bytes of a norm", "twice as fast as the peak"],
)
def test_what_is_not_known_is_not_guessed(kernel: tuple[float, float, str], matrix: bool) -> None:
    assert parted(kernel, 10_000, matrix=matrix) == {"unknown": 10_000}
    assert parted(kernel, 10_000, matrix=matrix, contention_ns=300) == {"contention": 300, "unknown": 9_700}


@given(
    flops=st.floats(0, 1e12),
    moved=st.floats(0, 1e9),
    duration=st.integers(1, 10**9),
    owned=st.floats(0, 1),
    contention=st.integers(0, 10**9),
    busy=st.floats(0.01, 1),
    clock=st.floats(0, 1),
    dtype=st.sampled_from(("fp32", "tf32", "bf16", "fp8", "unknown")),
    matrix=st.booleans(),
)
def test_parts_sum_to_the_owned_time(
    flops: float,
    moved: float,
    duration: int,
    owned: float,
    contention: int,
    busy: float,
    clock: float,
    dtype: str,
    matrix: bool,
) -> None:
    mine = int(duration * owned)
    found = parted(
        (flops, moved, dtype),
        duration,
        matrix=matrix,
        owned_ns=mine,
        contention_ns=contention,
        busy=busy,
        clock=clock,
    )
    assert sum(found.values()) == mine
    assert min(found.values(), default=0) >= 0


def test_blocks_fill_the_sms_in_whole_waves() -> None:
    """132 SMs: 264 blocks are two each; 140 leave most SMs with one while some have two; 66 fill half."""
    found = busy_sm_frac(np.array([264, 140, 66, 132, -1]), 132)
    assert found.tolist() == [1.0, 140 / 264, 0.5, 1.0, 1.0]
    assert busy_sm_frac(np.array([66]), None).tolist() == [1.0]


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12)


@given(SPANS)
def test_each_nanosecond_belongs_to_the_running_kernel_that_ends_last(spans: list[tuple[int, int]]) -> None:
    """By brute force: of those that run at an instant, the one that ends last; of equals the first to start,
    then the first in the list."""
    spans = sorted(spans, key=lambda s: s[0])
    start = np.array([s for s, _ in spans], np.int64)
    end = np.array([s + d for s, d in spans], np.int64)
    owned = [0] * len(spans)
    for t in range(50):
        running = [i for i in range(len(spans)) if start[i] <= t < end[i]]
        if running:
            owned[min(running, key=lambda i: (-end[i], start[i], i))] += 1
    assert owned_ns(start, end).tolist() == owned


def found(*kernels: tuple[bool, int, int]) -> int:
    fusible, stream, duration = (np.array(column) for column in zip(*kernels, strict=True))
    return fusible_ns(fusible, stream, duration)


def test_all_but_the_longest_of_each_run() -> None:
    """Stream 7: 10, 30, 20 between GEMMs save 30; one alone saves nothing; 5 and 5 save 5. Stream 9's kernel
    in between starts no run."""
    assert (
        found(
            *[(True, 7, 10), (True, 7, 30), (True, 9, 100), (True, 7, 20), (False, 7, 500)],
            *[(True, 7, 40), (False, 7, 500), (True, 7, 5), (True, 7, 5)],
        )
        == 35
    )


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 50)), min_size=1, max_size=20))
def test_against_a_walk_over_each_stream(kernels: list[tuple[bool, int, int]]) -> None:
    saved = 0
    for stream in range(3):
        run: list[int] = []
        for fusible, mine, duration in [*kernels, (False, stream, 0)]:
            if mine != stream:
                continue
            if fusible:
                run.append(duration)
            elif run:
                saved += sum(run) - max(run)
                run = []
    assert found(*kernels) == saved


def devices(path: Path) -> list[tuple[KernelEfficiency, int]]:
    """Each device's partition and the ledger's compute."""
    return [(r.efficiency, r.ledger.compute) for r in measure_capture(path, WindowRequest()).ranks]


@pytest.mark.slow
def test_compute_is_parted_to_the_nanosecond(shared_traces: Path) -> None:
    parted = 0
    for path in sorted(shared_traces.glob("*/*")):
        if not path.name.endswith((".sqlite", ".json.gz")) or "dlrm_8gpu" in path.name:
            continue
        try:
            ranks = devices(path)
        except TraceError:
            continue
        for found, compute_ns in ranks:
            if found.state == "measured":
                parted += 1
                lost = sum(row.total_ns for row in found.losses)
                assert found.compute_ns == found.at_peak_ns + lost + found.unknown_ns == compute_ns, path
                for rows in (found.by_class, found.by_part):
                    assert sum(row.time_ns for row in rows) == compute_ns, path
                    for row in rows:
                        assert row.roofline_ns <= row.known_ns + row.kernels, path
    assert parted > 15


def test_a_forward_pass_on_an_h100(shared_traces: Path) -> None:
    """qwen: its GEMMs run at 623 TFLOP/s, 63 % of 989; a sixth of compute is FLOPs at the peak."""
    ((found, _),) = devices(shared_traces / "shapes" / "qwen15_05b_forward_h100.json.gz")
    assert found.known_frac is not None
    assert found.known_frac > 0.99
    assert found.at_peak_ns / found.compute_ns == pytest.approx(0.183, abs=0.002)
    gemm = next(row for row in found.by_class if row.kernel_class == "gemm")
    assert gemm.achieved_tflops == pytest.approx(623, rel=0.01)
    assert gemm.roofline_frac == pytest.approx(623 / 989, rel=0.01)
