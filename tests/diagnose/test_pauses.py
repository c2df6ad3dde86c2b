"""Hosts that pause once a step, all at once: what the first sentence says, and what is promised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.results import Diagnosis
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.kineto import write_kineto
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.diagnose.test_not_training import said_of, words_of
from tests.rules.cases import case_of, result

US = 1_000
STEPS, BEFORE, AFTER = 8, 15, 25
LOG = "train.py(12): log_metrics"


def job(
    pause_us: int,
    *,
    ranks: int = 1,
    name: str = "",
    pieces: int = 1,
    batch: bool = False,
    waits: str = "",
    every: int = 1,
    after: int = AFTER,
    kernel_us: int = 100,
    apart_us: int = 10,
) -> TimelineBuilder:
    """Steps of 40 kernels of 100 us, launched 10 us apart behind a wait for the device, then an all-reduce of
    200 us. The host makes no call for so long after 15 of them; the queue then holds work for 1,350 us, so
    that the device idles for 1,350 us less. pieces: so many shorter pauses, before one later kernel each.
    batch: a step begins with a copy to the device. waits: the thread is off the CPU then, in this call.
    every: of so many steps one has pauses. after: kernels behind the first pause."""
    builder = TimelineBuilder()
    for rank in range(ranks):
        process = builder.process(pid=1000 + rank)
        thread, device = process.thread(), process.device(rank)
        at = 1_000 * US
        for step in range(STEPS):
            begin, call, free = at, at, at
            if batch:
                copied = (thread, at, at + 2 * US, "cudaMemcpyAsync")
                device.copy("host_to_device", 1 << 20, at + 3 * US, at + 8 * US, launch=copied)
                call, free = at + 3 * US, at + 8 * US
            for i in range(BEFORE + after):
                if step % every == 0 and BEFORE <= i < BEFORE + pieces:
                    if name and i == BEFORE:
                        thread.range(name, call, call + pause_us // pieces * US - US)
                    if waits:
                        thread.off_cpu(call, call + pause_us // pieces * US - US)
                        thread.os_call(waits, call, call + pause_us // pieces * US - US)
                    call += pause_us // pieces * US
                free = max(free, call + 5 * US)
                device.kernel(GEMM, free, free + kernel_us * US, launch=(thread, call, call + 3 * US))
                call, free = call + apart_us * US, free + kernel_us * US
            device.kernel(ALL_REDUCE, free, free + 200 * US, stream=20, launch=(thread, call, call + 3 * US))
            at = free + 210 * US
            thread.api("cudaStreamSynchronize", call + 5 * US, at - 2 * US)
            thread.range(f"step {step}", begin - US, at - US)
    return builder


@pytest.mark.parametrize(
    ("pause_us", "ranks", "name"),
    [(8_000, 1, ""), (8_000, 4, ""), (8_000, 4, "log_metrics"), (4_000, 1, "write_table"), (2_900, 2, "")],
)
def test_one_pause_a_step_is_no_launching(pause_us: int, ranks: int, name: str, tmp_path: Path) -> None:
    said = said_of(job(pause_us, ranks=ranks, name=name), tmp_path)
    lost_ms = (pause_us - 1_350) / 1_000
    assert ": the host pauses once a step" in said.verdict
    assert (f"in `{name}`" in said.verdict) == bool(name)
    rule = next(rule for rule in said.rules if rule.code == "PD201")
    assert said.opportunities[0].codes == ["PD201"]
    assert "CUDA graphs" not in words_of(said)
    assert rule.gain is not None
    assert rule.gain.high_ms == pytest.approx(lost_ms, abs=0.02 * lost_ms + 0.02)


@pytest.mark.parametrize("call", ["fsync", "pthread_cond_wait"])
def test_a_wait_of_the_host_has_its_call(call: str, tmp_path: Path) -> None:
    builder = job(8_000, waits=call)
    assert f": the host waits once a step, in {call}." in said_of(builder, tmp_path).verdict


def test_a_few_pauses_a_step_are_none_of_launching_either(tmp_path: Path) -> None:
    """Three of 4 ms: 1,350 us of the first one, and 90 of each other one, are hidden behind kernels."""
    said = said_of(job(12_000, pieces=3), tmp_path)
    assert ": the host pauses." in said.verdict
    assert "CUDA graphs" not in words_of(said)
    rule = next(rule for rule in said.rules if rule.code == "PD201")
    assert rule.gain is not None
    assert rule.gain.high_ms == pytest.approx(12 - 1.35 - 0.18, abs=0.1)


@pytest.mark.parametrize(("every", "words"), [(2, "pauses in every second step."), (3, "pauses.")])
def test_how_often_is_counted_in_each_step(every: int, words: str, tmp_path: Path) -> None:
    """Two of 8 ms and more in some steps: in the mean a step has as much as one of them."""
    said = said_of(job(every * 8_500, pieces=2, every=every), tmp_path)
    assert f": the host {words}" in said.verdict


def test_a_pause_of_each_micro_batch_is_none_of_launching(tmp_path: Path) -> None:
    """Six of 4 ms among 80 kernels: of the first 1,350 us are hidden, of each other one 90."""
    said = said_of(job(24_000, pieces=6, after=65), tmp_path)
    assert ": the host pauses." in said.verdict
    assert "CUDA graphs" not in words_of(said)
    rule = next(rule for rule in said.rules if rule.code == "PD201")
    assert rule.gain is not None
    assert rule.gain.high_ms == pytest.approx(24 - 1.35 - 5 * 0.09, abs=0.1)


@pytest.mark.parametrize("kernels", [100, 200])
def test_the_larger_part_leads_and_graphs_may_have_both(kernels: int, tmp_path: Path) -> None:
    """Kernels of 5 us launched 40 us apart, and four stretches of 1.2 ms of Python, 4.8 ms: of 100 kernels
    the launches are the smaller part. A graph of the whole step leaves nothing but its kernels."""
    builder = job(4_800, pieces=4, after=kernels - BEFORE, kernel_us=5, apart_us=40)
    said = said_of(builder, tmp_path)
    first = said.opportunities[0]
    pauses = kernels == 100
    assert (": the host pauses" in said.verdict) == pauses
    assert ("launch-bound" in said.verdict) != pauses
    assert (first.codes, first.key) == (["PD201"], "" if pauses else "without_launches")
    graphs = next(row for row in said.opportunities if row.key == "without_launches").gain
    assert graphs is not None
    assert graphs.mid_ms is not None
    assert graphs.high_ms is not None
    assert graphs.mid_ms <= kernels * 0.04
    assert graphs.high_ms >= 0.99 * (kernels * 0.035 + 4.8)


def test_many_pauses_a_step_are_the_models_own(tmp_path: Path) -> None:
    """20 of 1.5 ms a step, as of layers whose Python is slow: graphs of layers take them away."""
    said = said_of(job(30_000, pieces=20), tmp_path)
    assert "launch-bound" in said.verdict
    assert "CUDA graphs" in words_of(said)


@pytest.mark.parametrize(("late", "kernels", "each_us"), [(60, 80, 1_500), (60, 80, 3_000), (30, 400, 3_000)])
def test_many_late_launches_in_turn_are_slow_launching(
    late: int, kernels: int, each_us: int, tmp_path: Path
) -> None:
    """As in a debugger: most of a step's launches, or a layer of 30. 1,350 us of the first one are hidden
    behind kernels, of each other one 90."""
    said = said_of(job(late * each_us, pieces=late, after=kernels - BEFORE), tmp_path)
    assert "launch-bound" in said.verdict
    gain = said.opportunities[0].gain
    assert (said.opportunities[0].codes, gain is None) == (["PD201"], False)
    assert gain is not None
    assert gain.low_ms <= (lost_ms := late * (each_us - 90) / 1_000 - 1.26) <= (gain.high_ms or 0) * 1.001
    assert gain.mid_ms == pytest.approx(lost_ms, rel=0.15)


def test_few_late_launches_a_step_are_pauses_though_many_come_in_turn(tmp_path: Path) -> None:
    """A loop that does something else for 3 ms between each two of three kernels of 100 us."""
    builder, thread, device = one_gpu()
    for step in range(40):
        at = 6_400 * US * step
        for i in range(3):
            call, begin = at + (3_000 * i + 10) * US, at + (3_000 * i + 15) * US
            device.kernel(GEMM, begin, begin + 100 * US, launch=(thread, call, call + 3 * US))
        thread.api("cudaStreamSynchronize", at + 6_020 * US, at + 6_117 * US)
        thread.range(f"step {step}", at, at + 6_300 * US)
    assert ": the host pauses" in said_of(builder, tmp_path).verdict


def test_workers_are_not_blamed_where_no_batch_is_copied_behind_the_pause(tmp_path: Path) -> None:
    """A step's batch goes to the device at its beginning; the pause lies in the middle."""
    case = case_of(tmp_path, job(8_000, batch=True), settings={"dataloader_num_workers": 4})
    found = result("PD201", case)
    assert (found.state, found.action) == ("fires", "Find what the host waits for")
    assert "worker" not in found.remedy


def test_a_python_function_says_what_the_host_does(tmp_path: Path) -> None:
    path = write_kineto(job(8_000).build(), tmp_path / "rank0.json", 1000)
    trace = json.loads(path.read_text())
    first = [e for e in trace["traceEvents"] if e.get("name") == "cudaLaunchKernel"]
    for step in range(STEPS):
        before, after = first[step * 41 + BEFORE - 1], first[step * 41 + BEFORE]
        begin = before["ts"] + before["dur"]
        event = {"ph": "X", "cat": "python_function", "name": LOG, "pid": before["pid"], "tid": before["tid"]}
        trace["traceEvents"].append({**event, "ts": begin + 1, "dur": after["ts"] - begin - 2, "args": {}})
    path.write_text(json.dumps(trace))
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    assert f"once a step, in `{LOG}`" in said.verdict
    assert f"See what `{LOG}` does" in words_of(said)


@pytest.mark.parametrize(
    ("who", "logs_us"), [((0,), 0), ((0, 3), 0), ((0, 1, 2, 3), 0), ((0,), 4_000), ((0,), 6_000)]
)
def test_pauses_that_waits_hide_are_no_part_of_what_one_host_saves(
    who: tuple[int, ...], logs_us: int, tmp_path: Path
) -> None:
    """Four ranks of five pieces of 2 ms with an all-reduce behind each. In a step hosts pause once, each for
    6 ms in another piece: the first one's is what the others wait for, meanwhile they pause too. Launches are
    3 ms ahead in the second piece, so that 3 ms show. In the last one they are 9 ms ahead: the fourth host's
    pause never shows, nor what the third one logs behind its last launch (logs_us), 10 ms of work ahead. Each
    rank has a container of its own: their PIDs are alike."""

    def told(late: tuple[int, ...], folder: Path) -> tuple[Diagnosis, float]:
        builders = [TimelineBuilder() for _ in range(4)]
        works = [(p.thread(), p.device(i)) for i, p in enumerate(b.process(pid=7) for b in builders)]
        at = 1_000 * US
        for step in range(8):
            free, call = [at + 10 * US] * 4, [at] * 4
            for piece in range(5):
                for rank, (thread, device) in enumerate(works):
                    for half in range(2):
                        pauses = rank in late and (piece, half) == (1 + rank, 1)
                        call[rank] += (6_000 if pauses else 50) * US
                        begin = max(free[rank], call[rank] + 5 * US)
                        free[rank] = begin + 1_000 * US
                        launch = (thread, call[rank], call[rank] + 3 * US)
                        device.kernel(GEMM, begin, free[rank], launch=launch)
                end = max(free) + 100 * US
                for rank, (thread, device) in enumerate(works):
                    call[rank] += 10 * US
                    launch = (thread, call[rank], call[rank] + 3 * US)
                    device.kernel(ALL_REDUCE, free[rank], end, stream=20, launch=launch)
                free = [end] * 4
            for rank, (thread, _) in enumerate(works):
                call[rank] += logs_us * US if rank == 2 else 0
                thread.api("cudaStreamSynchronize", call[rank] + 5 * US, free[0] + 2 * US)
                thread.range(f"step {step}", at, free[0] + 4 * US)
            at = free[0] + 10 * US
        paths = [write_nsys_sqlite(b.build(), folder / f"{i}.sqlite") for i, b in enumerate(builders)]
        return analysed(AnalysisRequest(captures=tuple(paths), jobs=1)).diagnosis, at / 8e6

    said, step_ms = told(who, tmp_path)
    saved = step_ms - told(tuple(rank for rank in who if rank), tmp_path / "one")[1]
    gain = next(rule.gain for rule in said.rules if rule.code == "PD303")
    assert gain is not None
    assert (
        gain.low_ms <= saved <= step_ms - told((), tmp_path / "none")[1] + 0.01 <= (gain.high_ms or 0) * 1.01
    )
    assert said.verdict.endswith("of the 13.6 ms step.")
    assert ("as busy elsewhere" in said.verdict) == (gain.mid_ms is None) == (1 in who)
    if gain.mid_ms is not None:
        assert gain.low_ms > 2.9


@pytest.mark.parametrize(("begins_us", "logs_us"), [(3_000, 2_500), (6_000, 2_500), (2_500, 3_000)])
def test_who_begins_late_hides_what_another_host_does_later(
    begins_us: int, logs_us: int, tmp_path: Path
) -> None:
    """Two ranks of twice 2 ms and an all-reduce of 100 us. Rank 1 begins each step late, rank 0 logs between
    the halves: without that a step is shorter by what it logs beyond the other one's lateness."""
    builders = [TimelineBuilder() for _ in range(2)]
    works = [(p.thread(), p.device()) for p in (b.process(pid=100 + i) for i, b in enumerate(builders))]
    at = 1_000 * US
    for step in range(8):
        free = []
        for rank, (thread, device) in enumerate(works):
            call = at + rank * begins_us * US
            for half in range(2):
                for i in range(10):
                    begin, launch = call + (5 + 200 * i) * US, call + 10 * i * US
                    device.kernel(GEMM, begin, begin + 200 * US, launch=(thread, launch, launch + 3 * US))
                call += 2_010 * US
                if not half:
                    thread.api("cudaStreamSynchronize", call - 1_900 * US, call)
                    call += 0 if rank else logs_us * US
            free.append(call - 5 * US)
        end = max(free) + 100 * US
        for (thread, device), begin in zip(works, free, strict=True):
            device.kernel(ALL_REDUCE, begin, end, stream=20, launch=(thread, begin - 9 * US, begin - 6 * US))
            thread.api("cudaStreamSynchronize", begin - 5 * US, end + 2 * US)
            thread.range(f"step {step}", at, end + 3 * US)
        at = end + 4 * US
    paths = tuple(write_nsys_sqlite(b.build(), tmp_path / f"{i}.sqlite") for i, b in enumerate(builders))
    said = analysed(AnalysisRequest(captures=paths, jobs=1)).diagnosis
    assert said.analyses.what_if is not None
    causes = said.analyses.what_if.causes
    assert [cause.saved_ns for cause in causes] == pytest.approx([500_000] * (logs_us > begins_us), rel=0.02)
    assert "pid 100 " not in said.verdict


@pytest.mark.parametrize("logs_us", [0, 1_900, 2_200])
def test_a_host_that_logs_behind_its_work_limits_what_a_slow_gpu_costs(logs_us: int, tmp_path: Path) -> None:
    """Two ranks of 20 kernels of 60 us, on the second 120, and an all-reduce of 100 us. The first one's host
    logs meanwhile: without the slow GPU a step ends with the log, behind 210 us of launches."""
    builders = [TimelineBuilder() for _ in range(2)]
    works = [(p.thread(), p.device()) for p in (b.process(pid=100 + i) for i, b in enumerate(builders))]
    at = 1_000 * US
    for step in range(8):
        end = at + 2_505 * US
        for rank, (thread, device) in enumerate(works):
            call, free = at, at + 5 * US
            for _ in range(20):
                begin, free = free, free + (1 + rank) * 60 * US
                device.kernel(GEMM, begin, free, launch=(thread, call, call + 3 * US))
                call += 10 * US
            device.kernel(ALL_REDUCE, free, end, stream=20, launch=(thread, call, call + 3 * US))
            call += (10 if rank else 10 + logs_us) * US
            thread.api("cudaStreamSynchronize", call, end + 2 * US)
            thread.range(f"step {step}", at, end + 3 * US)
        at = end + 5 * US
    paths = tuple(write_nsys_sqlite(b.build(), tmp_path / f"{i}.sqlite") for i, b in enumerate(builders))
    said = analysed(AnalysisRequest(captures=paths, jobs=1)).diagnosis
    # Nothing waits for what is logged in the last of eight steps: there 1,200 us go.
    saved = (7 * (2_510 - max(1_310, 217 + logs_us)) + 1_200) / 8_000
    gain = next(rule.gain for rule in said.rules if rule.code == "PD303")
    assert "pid 101 computes 2 times as long as its peer" in said.verdict
    assert gain is not None
    assert saved <= (gain.high_ms or 0) <= 1.25
    assert (gain.mid_ms is None) == (logs_us > 0)
    assert gain.low_ms <= saved


def in_turn(
    folder: Path, pauses: Callable[[int, int], int], *, behind_us: int = 0
) -> tuple[Diagnosis, float]:
    """(What is said, a step's ms): eight steps of four ranks, five kernels of 1 ms and an all-reduce of 100
    us. A host collects garbage for as many us before the third kernel. behind_us: rank 0's host saves for so
    long behind the second step and the fifth."""
    builders = [TimelineBuilder() for _ in range(4)]
    works = [(p.thread(), p.device()) for p in (b.process(pid=100 + i) for i, b in enumerate(builders))]
    at, begins = 1_000 * US, []
    late = [0] * 4
    for step in range(8):
        free, call = [], []
        for rank, (thread, device) in enumerate(works):
            begin = call_ns = at + late[rank]
            for kernel in range(5):
                if kernel == 2 and (gc_us := pauses(rank, step)):
                    thread.range("gc", call_ns, call_ns + gc_us * US)
                    call_ns += gc_us * US
                start = max(begin, call_ns + 5 * US)
                begin = start + 1_000 * US
                device.kernel(GEMM, start, begin, launch=(thread, call_ns, call_ns + 3 * US))
                call_ns += 5 * US
            free.append(begin)
            call.append(call_ns)
        end = max(free) + 100 * US
        for (thread, device), start, asked in zip(works, free, call, strict=True):
            device.kernel(ALL_REDUCE, start, end, stream=20, launch=(thread, asked, asked + 3 * US))
            thread.api("cudaStreamSynchronize", asked + 5 * US, end + 2 * US)
        saves = behind_us * US if step in (1, 4) else 0
        late = [saves, 0, 0, 0]
        for thread, _ in works:
            thread.range(f"step {step}", at, end + 3 * US)
        begins.append(at)
        at = end + 4 * US
    paths = [write_nsys_sqlite(b.build(), folder / f"{i}.sqlite") for i, b in enumerate(builders)]
    return analysed(AnalysisRequest(captures=tuple(paths), jobs=1)).diagnosis, (at - begins[0]) / 8e6


def test_garbage_that_ranks_collect_in_turn_leads(tmp_path: Path) -> None:
    """One of four in each step, for 3.5 ms, of which 1.5 and launches show: without, a step is 5.1 ms."""
    said, step_ms = in_turn(tmp_path, lambda rank, step: 3_500 if rank == step % 4 else 0)
    assert said.verdict.startswith(
        "Ranks collect garbage at different times, and the others wait for each: 1.5"
    )
    first = said.opportunities[0]
    assert first.codes == ["PD202"]
    assert first.gain is not None
    assert first.gain.low_ms <= step_ms - 5.1 <= (first.gain.high_ms or 0)


def test_a_pause_between_steps_counts_once(tmp_path: Path) -> None:
    """30 ms behind two of eight steps: on rank 0 at their ends, on the others as the next ones begin."""
    said, step_ms = in_turn(tmp_path, lambda rank, step: 0, behind_us=30_000)
    assert said.analyses.what_if is not None
    assert said.analyses.what_if.measured_ns == pytest.approx(step_ms * 1e6, rel=0.01)
