from collections.abc import Sequence
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import CaptureMeasurement, measure_capture
from perfdoc.diagnose.asked import window_request
from perfdoc.results.capture_parts import Period
from perfdoc.results.ranks import Window
from perfdoc.results.rules import RuleResult
from perfdoc.rules.checks.pd902_no_step_ranges import _action
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.registry import all_rules, own_rules
from perfdoc.rules.engine.rule import Meta, Rule, Verdict
from perfdoc.rules.facts.hardware import gpu_of
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import case_of
from tests.rules.judged import run_rules


def measured(
    folder: Path, builder: TimelineBuilder, request: WindowRequest | None = None
) -> list[CaptureMeasurement]:
    path = write_nsys_sqlite(builder.build(), folder / "x.sqlite", force=True)
    return [measure_capture(path, request or WindowRequest())]


def result(code: str, captures: Sequence[CaptureMeasurement]) -> RuleResult:
    (found,) = [r for r in run_rules(Case.of(captures)) if r.code == code]
    return found


def with_gap(gap_ns: int, *, launched: bool = True, kernel_ns: int = 50_000) -> TimelineBuilder:
    """Two kernels around a gap for which the second one was queued all along."""
    builder, thread, device = one_gpu()
    launches = [(thread, 0, 1), (thread, 2, 3)] if launched else [None, None]
    device.kernel(GEMM, 10, 10 + kernel_ns, launch=launches[0])
    start = 10 + kernel_ns + gap_ns
    device.kernel(GEMM, start, start + kernel_ns, launch=launches[1])
    return builder


def test_pd901_counts_against_the_window(tmp_path: Path) -> None:
    # 25 us of 125 us is 20 %; the remedy differs where launches are missing altogether.
    fires = result("PD901", measured(tmp_path, with_gap(25_000)))
    assert (fires.state, fires.evidence[0].value) == ("fires", "20.0 %")
    assert "batches" in fires.remedy
    assert result("PD901", measured(tmp_path, with_gap(15_000))).state == "passes"
    no_launches = result("PD901", measured(tmp_path, with_gap(25_000, launched=False)))
    assert (no_launches.state, "--trace=cuda" in no_launches.remedy) == ("fires", True)
    no_ids = with_gap(25_000, launched=False)
    no_ids.process(pid=1).thread().api("cudaLaunchKernel_v7000", 0, 1)
    lost = result("PD901", measured(tmp_path, no_ids))
    assert (lost.state, "CUDA API" in lost.remedy, "ids" in lost.remedy) == ("fires", False, True)


def test_pd901_threshold(tmp_path: Path) -> None:
    # 40 of 2,000 us are 2 %.
    edge = with_gap(40_000, kernel_ns=980_000)
    assert result("PD901", measured(tmp_path, edge)).state == "passes"
    assert result("PD901", measured(tmp_path, with_gap(40_100, kernel_ns=980_000))).state == "fires"


@pytest.mark.parametrize(("processes", "launched"), [(1, True), (2, True), (1, False)])
def test_pd901_of_gpus_of_one_process_that_take_turns(processes: int, launched: bool, tmp_path: Path) -> None:
    """All is launched at once; each of two GPUs runs two kernels of 50 us, one after the other's: 50 of the
    150 us between its first and its last are idle, in which the other works."""
    builder = TimelineBuilder()
    made = [builder.process(pid=100 + i) for i in range(processes)]
    threads = [process.thread() for process in made]
    devices = [made[0].device(), made[-1].device(ordinal=1)]
    for i in range(4):
        launch = threads[i % 2 % processes], 10 * i, 10 * i + 1
        at = 50_000 * (i + 1)
        devices[i % 2].kernel(GEMM, at, at + 50_000, launch=launch if launched else None)
    found = result("PD901", measured(tmp_path, builder))
    assert found.state == "fires"
    told = processes == 1 and launched
    assert ("device_map" in found.remedy, "one at a time" in found.reason) == (told, told)


@pytest.mark.parametrize(("gpus", "apart_us", "told"), [(2, 0, False), (4, 0, False), (4, 240, True)])
def test_pd901_of_gpus_of_one_process_that_work_together(
    gpus: int, apart_us: int, told: bool, tmp_path: Path
) -> None:
    """Steps of 1,000 us, launched early, of which each GPU works 240: 0.5 or 1 GPU at a time in the mean,
    but all or none where they begin at once."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, devices = process.thread(), [process.device(ordinal=i) for i in range(gpus)]
    for step in range(6):
        at = step * 1_000_000
        thread.range(f"step {step}", at, at + 900_000)
        for i, device in enumerate(devices):
            start = at + 1_000_000 + i * apart_us * 1_000
            device.kernel(GEMM, start, start + 240_000, launch=(thread, at + 20 * i, at + 20 * i + 10))
    found = result("PD901", measured(tmp_path, builder))
    assert found.state == "fires"
    assert ("device_map" in found.remedy) == told


def test_pd901_of_a_gpu_beside_one_that_is_shared(tmp_path: Path) -> None:
    """Two processes share a GPU, each of them working 500 of 1,000 us; another, alone, works 300."""
    for alone_us, others in ((300, False), (600, True)):
        builder = TimelineBuilder()
        for k, (uuid, busy_us) in enumerate((("GPU-a", 500), ("GPU-a", 500), ("GPU-b", alone_us))):
            process = builder.process(pid=1000 + k)
            thread, device = process.thread(), process.device(uuid=uuid)
            for step in range(5):
                at = step * 1_000_000
                thread.range(f"step {step}", at, at + 900)
                start = at + 1_000_000 + (k % 2) * 500_000
                device.kernel(GEMM, start, start + busy_us * 1_000, launch=(thread, at + 10, at + 20))
        found = result("PD901", measured(tmp_path, builder))
        assert ("other processes" in found.reason) == others


def test_pd902_wants_step_ranges_unless_a_window_was_given(tmp_path: Path) -> None:
    assert result("PD902", measured(tmp_path, with_gap(1))).state == "fires"
    for request in (WindowRequest(bounds_ns=(0, 100)), WindowRequest(whole_capture=True)):
        assert result("PD902", measured(tmp_path, with_gap(1), request)).state == "not_applicable"
    builder, thread, device = one_gpu()
    thread.range("perfdoc.step 0", 0, 100)
    device.kernel(GEMM, 10, 20, launch=(thread, 1, 2))
    assert result("PD902", measured(tmp_path, builder)).state == "passes"


def test_pd903_names_the_largest_unknown_kernel(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    device = builder.process().device()
    device.kernel(ALL_REDUCE, 0, 10)
    device.kernel(GEMM, 10, 90)
    device.kernel("zzz_small", 90, 92)
    assert result("PD903", measured(tmp_path, builder)).state == "passes"
    device.kernel("zzz_large", 92, 100)
    fires = result("PD903", measured(tmp_path, builder))
    assert (fires.state, fires.level) == ("fires", "information")
    assert [e.value for e in fires.evidence] == ["10.0 %", "zzz_large"]
    for other, state in ((50, "passes"), (51, "fires")):
        edge = TimelineBuilder()
        device = edge.process().device()
        device.kernel(GEMM, 0, 900 - other)
        device.kernel(ALL_REDUCE, 900 - other, 1000 - other)
        device.kernel("zzz", 1000 - other, 1000)
        assert result("PD903", measured(tmp_path, edge)).state == state
    graph = TimelineBuilder()
    graph.process().device().graph_launch(1, 0, 100)
    assert result("PD903", measured(tmp_path, graph)).state == "not_applicable"


def test_pd903_names_what_looks_like_communication_and_the_option(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    device = builder.process().device()
    device.kernel(GEMM, 0, 1000)
    for i, duration in enumerate((10, 20, 30, 40, 50, 60)):
        device.kernel("void zq::x.fer<8>(int*)", 100 * i, 100 * i + duration, stream=27, grid=(20, 1, 1))
    fires = result("PD903", measured(tmp_path, builder))
    assert (fires.state, fires.level) == ("fires", "information")
    values = {e.label: e.value for e in fires.evidence}
    assert values["suspected communication runs for"].startswith("21.0 %")
    assert "stream 27, 20 blocks" in values["zq::x.fer"]
    # A regular expression, quoted for the shell.
    assert r"--comm-kernel 'zq::x\.fer'" in fires.remedy


def test_a_rule_that_throws_is_an_error_row(tmp_path: Path) -> None:
    def broken(captures: Sequence[CaptureMeasurement]) -> Verdict:
        raise KeyError("oops")

    meta = Meta(code="PD999", title="Broken", why="", sources=())
    (row,) = run_rules(Case.of(measured(tmp_path, with_gap(1))), [Rule(meta=meta, evaluate=broken)])
    assert (row.state, row.reason) == ("error", "KeyError: 'oops'")


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.meta.code)
def test_each_rule_is_documented_and_lives_in_a_file_of_its_name(rule: Rule) -> None:
    assert rule.meta.title
    assert rule.meta.why.endswith(".")
    assert rule.meta.sources
    assert rule.evaluate.__module__.split(".")[-1].startswith(rule.meta.code.lower() + "_")


@pytest.mark.parametrize("rule", own_rules(), ids=lambda rule: rule.meta.code)
def test_every_rule_says_what_to_do_in_a_few_words(rule: Rule) -> None:
    action = rule.meta.action
    assert 0 < len(action) <= 64
    assert action != rule.meta.title
    assert action[0].isupper()
    assert not action.endswith(".")


def test_a_share_of_several_windows_is_of_all_their_time(tmp_path: Path) -> None:
    """Of 120 us on one rank 20 us are idle, of 200 us on the other 100: 120 of 320, not the mean of both."""
    case = case_of(tmp_path, with_gap(20_000), with_gap(100_000))
    assert case.share(lambda rank: rank.ledger.total - rank.ledger.compute) == pytest.approx(120 / 320)


@pytest.mark.parametrize(
    ("name", "architecture", "domain", "fp8"),
    [
        ("NVIDIA A100-SXM4-80GB", "ampere", 8, False),
        ("NVIDIA A100 80GB PCIe", "ampere", None, False),
        ("NVIDIA H100 80GB HBM3", "hopper", 8, True),
        ("NVIDIA H200 NVL", "hopper", None, True),
        ("NVIDIA GH200 480GB", "hopper", None, True),
        ("NVIDIA GB200", "blackwell", 72, True),
        ("NVIDIA L40S", "ada", 1, True),
    ],
)
def test_gpus_by_name(name: str, architecture: str, domain: int | None, fp8: bool) -> None:
    gpu = gpu_of(name)
    assert gpu is not None
    assert (gpu.architecture, gpu.nvlink_domain, gpu.fp8) == (architecture, domain, fp8)
    for unknown in (None, "", "Tesla V100-SXM2-32GB", "x" * 101, f"an {name}"):
        assert gpu_of(unknown) is None


@pytest.mark.parametrize("start_ns", [1_689_179_602_179_719_042, 4_200_000_000, 7])
def test_a_proposed_window_is_short_enough_to_be_pasted_whole(start_ns: int) -> None:
    period = Period(kernels=9, repeats=4, start_ns=start_ns, end_ns=start_ns + 400_000, optimizer=True)
    action = _action(
        Window(
            kind="capture",
            start_ns=0,
            end_ns=0,
            duration_ns=0,
            steps=0,
            step_list=[],
            reason="",
            period=period,
        )
    )
    # 78 columns, less the number and code before it.
    assert len(f" 9. PD902 {action}") <= 78
    bounds = window_request(action.rpartition(" ")[2]).bounds_ns
    assert bounds is not None
    for pasted, exact in zip(bounds, (period.start_ns, period.end_ns), strict=True):
        assert 0 <= exact - pasted < 1000
