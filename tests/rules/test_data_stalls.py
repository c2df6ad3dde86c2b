"""PD203 and PD201 where a device waits for its host between steps, or in them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.frameworks import Program
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.knobs.knob import Value
from perfdoc.results.what_if import WhatIfCause, no_what_if
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.possible import why_left_out
from perfdoc.simulator.replay.proposals import CHANGES
from tests.analyzers.loader_jobs import Between, both, calling, job, off, on, silent
from tests.analyzers.tiny import GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.process import ThreadBuilder
from tests.command import perfdoc
from tests.rules.cases import case_of, evidence_of, result, settings_of
from tests.rules.judged import run_rules

ROOM: dict[str, Value] = {
    "micro_batch_size": 1,
    "global_batch_size": 8,
    "cuda_graph_impl": "none",
    "recompute_granularity": None,
    "num_moe_experts": None,
    "dataloader_num_workers": 0,
}
"""Settings with which PD201 advises graphs, and PD203 workers."""


@pytest.mark.parametrize(
    ("between", "words", "share"),
    [
        (off, "the launching thread waits between steps", "79.9 %"),
        (silent, "likely", "80.0 %"),
        (calling("poll"), "the launching thread waits between steps", "79.9 %"),
    ],
)
def test_a_stall_is_the_loaders(tmp_path: Path, between: Between, words: str, share: str) -> None:
    # 80 ms of idle to 20 of work, five times, in 79.94 of which the thread is known to wait; behind the last
    # work the capture ends: that step is left out.
    case = case_of(tmp_path, job(between), settings=ROOM)
    found = result("PD203", case)
    assert (found.state, found.level, words in found.reason) == ("fires", "problem", True)
    assert evidence_of(found)[0] == share
    assert settings_of(found) == {"dataloader_num_workers": 2}
    assert "--data-range" in found.remedy
    # What is left to the host, microseconds of each pause, fires nothing.
    host = result("PD201", case)
    assert (host.state, settings_of(host)) == ("passes", {})


def test_a_named_loader_is_told_without_doubt(tmp_path: Path) -> None:
    def named(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
        thread.range("next_batch", start, end)

    found = result("PD203", case_of(tmp_path, job(both(off, named))))
    assert (found.state, found.reason) == ("fires", "batches arrive too late")
    assert "--data-range" not in found.remedy


@pytest.mark.parametrize(
    ("between", "inside", "words"),
    [
        (on, False, "between steps"),
        (off, True, "waits"),
        (both(off, calling("pthread_mutex_lock")), True, "waits"),
        (both(off, calling("fsync")), False, "waits"),
    ],
)
def test_no_larger_micro_batch_where_the_host_does_something_else(
    tmp_path: Path, between: Between, words: str, *, inside: bool
) -> None:
    case = case_of(tmp_path, job(between, inside=inside), settings=ROOM)
    found = result("PD201", case)
    assert (found.state, words in found.reason) == ("fires", True)
    assert settings_of(found) == {}
    assert "micro-batch" not in found.remedy
    assert result("PD203", case).state == "skipped"


def named(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
    """A range that says nothing of data."""
    thread.range("prologue", start, end)


@pytest.mark.parametrize(
    ("call", "likely"),
    [
        ("poll", True),
        ("sem_clockwait", True),
        ("pthread_cond_timedwait", True),
        ("epoll_wait", True),
        ("pthread_mutex_lock", False),
        ("pthread_cond_wait", False),
        ("fsync", False),
    ],
)
def test_a_wait_in_the_calls_of_a_queue_is_likely_for_a_batch(
    tmp_path: Path, call: str, *, likely: bool
) -> None:
    """A range that is no loader's lies over the pause: what the thread waits in tells."""
    case = case_of(tmp_path, job(both(off, named, calling(call))), settings=ROOM)
    found = result("PD201", case)
    assert found.state == "fires"
    assert ("next batch" in found.reason, found.action == "Load batches ahead of the step") == (likely,) * 2
    assert ("num_workers=4" in found.remedy, "item" in found.remedy) == (likely, False)
    assert "micro-batch" not in found.remedy


def test_where_workers_are_there_a_wait_is_likely_for_them(tmp_path: Path) -> None:
    case = case_of(tmp_path, job(both(off, named)))
    assert "next batch" not in result("PD201", case).reason
    program = Program(vendor="nvidia", marks=frozenset({"workers", "trains"}))
    shown = replace(case, captures=[replace(c, program=program) for c in case.captures])
    found = result("PD201", shown)
    assert "worker processes load its batches" in found.reason
    assert found.action == "Make the loader's workers faster"
    assert "prefetch_factor" in found.remedy
    assert "PD208" not in {r.code for r in run_rules(shown) if r.state == "fires"}


def test_where_a_range_shows_the_workers_another_wait_is_not_for_them(tmp_path: Path) -> None:
    """The loader's range is short, and the pause lies behind it."""

    def behind(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
        thread.range("_MultiProcessingDataLoaderIter.__next__", start, start + 50_000)
        thread.range("prologue", start + 50_000, end)

    case = case_of(tmp_path, job(both(off, behind)))
    program = Program(vendor="nvidia", marks=frozenset({"workers", "trains"}))
    found = result("PD201", replace(case, captures=[replace(c, program=program) for c in case.captures]))
    assert (found.state, "batch" in found.reason) == ("fires", False)
    assert found.action != "Make the loader's workers faster"


@pytest.mark.parametrize(
    ("frame", "data"),
    [
        ("queue.py(171): get", True),
        ("multiprocessing/connection.py(931): wait", True),
        ("torch/utils/data/dataloader.py(1480): _next_data", True),
        ("my/logging.py(3): flush", False),
    ],
)
def test_python_frames_tell_what_a_thread_waits_in(tmp_path: Path, frame: str, *, data: bool) -> None:
    """PyTorch's profiler with stacks: five pauses of 8 ms between six steps of 2 ms of work; the thread is in
    one function all the while. Too short to be told by their place alone."""
    events: list[dict[str, object]] = []

    def event(cat: str, name: str, ts: int, dur: int, tid: int = 1, **args: object) -> None:
        pid = 0 if cat == "kernel" else 7
        events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    for step in range(6):
        at = 10_000 * step
        for i in range(20):
            call = 100 * step + i + 1
            event("cuda_runtime", "cudaLaunchKernel", at + 8_000 + 100 * i, 10, correlation=call)
            event("kernel", GEMM, at + 8_020 + 100 * i, 90, 20, correlation=call, device=0, stream=7)
        event("user_annotation", f"ProfilerStep#{step}", at + 7_900, 2_090)
        event("python_function", frame, at + 10, 7_850)
    path = tmp_path / "x.pt.trace.json"
    path.write_text(
        json.dumps({"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": events})
    )
    found = result("PD203", Case.of([measure_capture(path, WindowRequest())]))
    assert (found.state == "fires" and "waits between steps" in found.reason) == data


def test_a_host_that_computes_in_its_steps_for_long_launches_nothing(tmp_path: Path) -> None:
    """80 ms in each step: no launch takes as long."""
    found = result("PD201", case_of(tmp_path, job(on, inside=True), settings=ROOM))
    assert (found.state, "launches nothing for long" in found.reason) == ("fires", True)
    assert (settings_of(found), "micro-batch" in found.remedy, "launch" in found.action) == ({}, False, False)


def test_waits_are_named(tmp_path: Path) -> None:
    between = both(off, calling("pthread_mutex_lock"))
    found = result("PD201", case_of(tmp_path, job(between, inside=True)))
    assert any("pthread_mutex_lock" in e.label for e in found.evidence)


def test_a_larger_micro_batch_is_no_advice_to_shards_of_a_stalled_job(tmp_path: Path) -> None:
    wide: dict[str, Value] = {"tensor_model_parallel_size": 8, "context_parallel_size": 1}
    found = result("PD315", case_of(tmp_path, job(off, inside=True), settings=wide))
    assert found.state != "fires"


def test_the_whole_way(tmp_path: Path) -> None:
    """The name of a range that the user alone knows; the replay without the stalls."""

    def named(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
        thread.range("gimme", start, end)

    path = write_nsys_sqlite(job(both(off, named)).build(), tmp_path / "x.sqlite")
    told = {}
    for words in ((), ("--data-range", "^gimme$"), ("--data-range", "nothing")):
        done = perfdoc("analyze", path, "--json", "-", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        told[words] = json.loads(done.stdout)
    rules = {w: {r["code"]: r for r in d["rules"]} for w, d in told.items()}
    fires = {w: [c for c in ("PD201", "PD203") if r[c]["state"] == "fires"] for w, r in rules.items()}
    assert list(fires.values()) == [["PD201"], ["PD203"], ["PD201"]]
    codes = [[q["code"] for q in d["quality"]] for d in told.values()]
    assert ["no-data-range" in c for c in codes] == [False, False, True]
    assert "micro-batch" not in rules[()]["PD201"]["remedy"]


def test_what_the_stall_costs_is_what_the_replay_takes_away(tmp_path: Path) -> None:
    path = write_nsys_sqlite(job(off).build(), tmp_path / "x.sqlite")
    done = perfdoc("analyze", path, "--json", "-", cwd=tmp_path)
    found = json.loads(done.stdout)
    (rule,) = [r for r in found["rules"] if r["code"] == "PD203"]
    # Five stalls of 79.94 ms over five steps: the sixth, behind which none is seen, is left out.
    assert rule["gain"]["method"] == "replay"
    assert rule["gain"]["mid_ms"] == pytest.approx(79.94, rel=0.002)
    assert "data-loader stall" in found["verdict"]
    assert "likely" not in found["verdict"]
    assert found["ranks"][0]["host"]["data"]["idle_thread_ns"] == 5 * 79_940_000


@pytest.mark.parametrize(
    ("late_frac", "level", "bound_frac"),
    [
        # 80 % of the step is idle before late launches, all of which the bound is.
        (0.06, "problem", 0.74),
        (0.3, "problem", 0.5),
        (0.45, "information", None),  # more than half of it is the late host's
    ],
)
def test_a_late_host_takes_what_it_costs_from_the_bound(
    tmp_path: Path, late_frac: float, level: str, bound_frac: float | None
) -> None:
    case = case_of(tmp_path, job(on, inside=True), settings=ROOM)
    step_ns = round((case.unit_ms or 0) * 1e6)
    saved = round(late_frac * step_ns)
    cause = WhatIfCause(
        kind="late_host",
        ranks=[2],
        ratio=1.1,
        peers=3,
        step_ns=step_ns - saved,
        saved_ns=saved,
        low_ns=saved,
        high_ns=saved,
    )
    what_if = replace(
        no_what_if(""), state="measured", steps=2, measured_ns=step_ns, step_ns=step_ns, causes=[cause]
    )
    case = replace(case, what_if=what_if)
    found = result("PD201", case)
    assert (found.state, found.level) == ("fires", level)
    frac = None if found.gain is None else (found.gain.high_ms or 0) / (case.unit_ms or 1)
    assert frac == (None if bound_frac is None else pytest.approx(bound_frac, abs=0.002))
    # Fewer launches do not help, whoever has the price: no list and no section promises their gain.
    assert "PD201 fires" in why_left_out(case, "without_launches", CHANGES["without_launches"].ways)


def test_the_bound_of_stalls_leaves_what_the_device_computes_anyway(tmp_path: Path) -> None:
    """The loader's range begins 15 ms before each of five stalls, over kernels that are queued."""

    def named(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
        thread.range("next_batch", start - 14_000_000, end)

    case = case_of(tmp_path, job(named), settings=ROOM | {"dataloader_num_workers": 4})
    (rank,) = case.ranks
    stalls_ms = rank.ledger.idle.data / 5e6
    assert (rank.host.data.total_ns or 0) / 5e6 > stalls_ms + 10
    found = result("PD203", case)
    assert found.gain is not None
    assert stalls_ms <= (found.gain.high_ms or 0) <= (rank.ledger.total - rank.ledger.compute) / 5e6 + 1e-6
