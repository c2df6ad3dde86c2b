"""Exports of Nsight with tables and habits of their own: what is said is what the lines plant."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.kernel_class.classify import KernelClass, classify
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.reports.screen import render_screen
from perfdoc.results import Diagnosis
from perfdoc.traces.load import read_trace
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import Timeline, one_gpu

US = 1_000
FORWARD, BACKWARD, UPDATE = "nvjet_forward", "nvjet_backward", "multi_tensor_apply_kernel"


def said_of(timeline: Timeline, folder: Path) -> Diagnosis:
    path = write_nsys_sqlite(timeline, folder / "report.sqlite")
    return analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis


def training(*, open_last: bool = False, every: int = 0, evaluation: int = 60) -> Timeline:
    """Eight iterations of 20 kernels of 100 us. An evaluation lies in the last range, which stays open, or
    before each so many-th iteration, which then has no range but its optimizer's."""
    builder, thread, device = one_gpu()
    at = busy = 1_000 * US
    names = [FORWARD] * 8 + [BACKWARD] * 11

    def run(name: str) -> None:
        nonlocal at, busy
        busy = max(busy, at + 5 * US)
        device.kernel(name, busy, busy + 99 * US, launch=(thread, at, at + 3 * US))
        at, busy = at + 4 * US, busy + 100 * US

    for i in range(8):
        begin = at
        for name in [FORWARD] * (evaluation * (every > 0 and i % every == 1)) + names:
            run(name)
        update = at
        run(UPDATE)
        if every:
            thread.range("Optimizer.step#SGD.step", update, at)
        for _ in range(evaluation * (open_last and i == 7)):
            run(FORWARD)
        thread.synchronize("device", at, busy)
        at = busy
        if not every:
            thread.range(f"step {i}", begin, None if open_last and i == 7 else at)
    return builder.build()


@pytest.mark.parametrize(("evaluation", "steps"), [(60, 7), (2, 8)])
def test_a_last_range_that_stays_open_is_no_step_with_what_follows(
    evaluation: int, steps: int, tmp_path: Path
) -> None:
    """Sixty launches behind the twenty of the step; two more are as a step may have."""
    said = said_of(training(open_last=True, evaluation=evaluation), tmp_path)
    (rank,) = said.ranks
    assert rank.window.steps == steps
    notes = [note.message for note in said.quality if note.code == "steps-left-out"]
    assert ("80 launches, where others have up to 20" in " ".join(notes)) == (steps == 7)


@pytest.mark.parametrize(("every", "other", "steps"), [(9, False, 8), (2, False, 8), (2, True, 4)])
def test_an_evaluation_in_every_second_iteration_makes_no_pair_of_them(
    every: int, other: bool, steps: int, tmp_path: Path
) -> None:
    """Twenty kernels an iteration, in every second one behind twenty more. other: the twenty of that one are
    not those of the others, as where two networks are trained in turn."""
    timeline = training(every=every, evaluation=20)
    if other:
        kernels = [
            replace(k, name="other", full_name="other") if k.name == BACKWARD and i % 60 >= 40 else k
            for i, k in enumerate(timeline.kernels)
        ]
        timeline = replace(timeline, kernels=kernels)
    (rank,) = said_of(timeline, tmp_path).ranks
    assert rank.window.steps == steps


def test_kernels_without_names_are_not_said_to_compute(tmp_path: Path) -> None:
    path = write_nsys_sqlite(training(), tmp_path / "report.sqlite")
    with sqlite3.connect(path) as file:
        file.execute(
            "DELETE FROM StringIds WHERE id IN (SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL "
            "UNION SELECT shortName FROM CUPTI_ACTIVITY_KIND_KERNEL)"
        )
    file.close()
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    assert said.verdict.endswith("is compute, or communication: names of kernels are missing.")
    assert "no large loss" not in render_screen(said, report="x")


@pytest.mark.parametrize(
    ("ranks", "size", "found"), [([5], 0, 5), ([0], 0, None), ([0], 4, 0), ([5, 5], 0, None), ([-1], 0, None)]
)
def test_ranks_that_mpi_gives(ranks: list[int], size: int, found: int | None, tmp_path: Path) -> None:
    """Of one process and its thread; another may claim the same. Rank 0 of a group of one says nothing."""
    path = write_nsys_sqlite(training(), tmp_path / "report.sqlite")
    with sqlite3.connect(path) as file:
        (mine,) = file.execute("SELECT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 1").fetchone()
        file.execute("CREATE TABLE MPI_RANKS (globalTid INTEGER, rank INTEGER)")
        file.execute("CREATE TABLE MPI_COMMUNICATORS (rank INTEGER, size INTEGER)")
        rows = [(mine + (i << 24), rank) for i, rank in enumerate(ranks)]
        file.executemany("INSERT INTO MPI_RANKS VALUES (?, ?)", rows)
        file.execute("INSERT INTO MPI_COMMUNICATORS VALUES (?, ?)", (ranks[0], size))
    file.close()
    (device,) = read_trace(path).devices
    assert (device.rank, device.rank_evidence) == (found, "none" if found is None else "mpi")


@pytest.mark.parametrize(("faults", "told"), [(1_000, True), (2, False)])
def test_page_faults_of_the_host_are_told(faults: int, told: bool, tmp_path: Path) -> None:
    """Kernels run for 15.8 ms; a fault takes 10 us and more."""
    path = write_nsys_sqlite(training(), tmp_path / "report.sqlite")
    with sqlite3.connect(path) as file:
        file.execute(
            "CREATE TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS (start INTEGER, globalPid INTEGER, address INTEGER)"
        )
        rows = [(2_000 * US + i, 1000 << 24, 4096 * i) for i in range(faults)]
        file.executemany("INSERT INTO CUDA_UM_CPU_PAGE_FAULT_EVENTS VALUES (?, ?, ?)", rows)
    file.close()
    notes = {note.code: note.message for note in read_trace(path).notes}
    assert ("1,000 times" in notes.get("host-page-faults", "")) == told


@pytest.mark.parametrize(
    "name",
    [
        "cudapy::nemo::collections::asr::parts::numba::rnnt_loss::gpu_rnnt_kernel::compute_alphas_kernel",
        "void compute_betas_kernel<256>(float const*)",
        "void torchaudio::rnnt::gpu::ComputeAlphasBetasCosts<float, float>(int, int)",
        "kernel_warp_alphas(unsigned int*)",
    ],
)
def test_losses_of_transducers(name: str) -> None:
    found = classify(name, name)
    assert (found.kernel_class, found.label) == (KernelClass.LOSS, "transducer")
