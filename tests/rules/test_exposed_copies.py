"""PD204: copies that nothing hides."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import STEP_US, US, case_of, evidence_of, gain_of, result, settings_of
from tests.rules.test_precision_rules import SGEMM


def copying(
    exposed_us: int,
    kind: str = "host_to_device",
    gemm: str = GEMM,
    pinned: tuple[bool | None, bool | None] = (None, None),
    inside: str = "",
) -> TimelineBuilder:
    """Steps of 1 ms: a copy of 1 MiB of which so much runs beside no kernel, then compute. In the first
    step a copy of 2 MiB lies beside compute. inside: a range of twice the first copies' length."""
    builder, thread, device = one_gpu()
    for i in range(2):
        at = i * STEP_US * US
        end, launch = at + (exposed_us + 100) * US, (thread, at, at + 1)
        thread.range(f"perfdoc.step {i}", at, at + STEP_US * US)
        if inside:
            thread.range(inside, at, 2 * end - at)
        device.copy(kind, 1 << 20, at, end, stream=9, launch=launch, pinned=pinned[i])
        device.kernel(gemm, at + exposed_us * US, at + STEP_US * US, launch=(thread, at + 2, at + 3))
    device.copy("device_to_device", 2 << 20, 500 * US, 600 * US, stream=8, launch=(thread, 10, 11))
    return builder


def test_threshold_and_figures(tmp_path: Path) -> None:
    found = result("PD204", case_of(tmp_path, copying(50)))
    assert found.state == "fires", found.reason
    # Hidden copies are no kind of the exposed ones; 2 copies of 1 MiB in 2 steps, 2 x 50 us of 2 x 150.
    assert evidence_of(found) == ["5.0 %", "50 µs", "1 a step, 1.0 MiB, 50 µs exposed, 6.99 GB/s"]
    assert found.evidence[-1].label == "host to device"
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.05))
    assert "pin_memory" in found.remedy
    assert result("PD204", case_of(tmp_path, copying(49))).state == "passes"


def test_a_checkpoint_is_named(tmp_path: Path) -> None:
    saved = result("PD204", case_of(tmp_path / "a", copying(200, "device_to_host", inside="save_checkpoint")))
    assert "`save_checkpoint`" in saved.remedy
    assert "async_save" in saved.remedy
    other = result("PD204", case_of(tmp_path / "b", copying(200, "device_to_host", inside="metrics")))
    assert "async_save" not in other.remedy


def test_many_copies_in_a_checkpoint_are_named(tmp_path: Path) -> None:
    """Ten of 40 us, each behind 60 us without one, in a range of the whole step: 40 % of it together."""
    builder, thread, device = one_gpu()
    for i in range(2):
        at = i * STEP_US * US
        thread.range(f"perfdoc.step {i}", at, at + STEP_US * US)
        thread.range("save_checkpoint", at + 1, at + (STEP_US - 1) * US)
        for k in range(10):
            begin = at + (20 + 90 * k) * US
            device.kernel(GEMM, begin - 15 * US, begin, launch=(thread, begin - 16 * US, begin - 15 * US))
            device.copy("device_to_host", 1 << 20, begin, begin + 40 * US, launch=(thread, begin - US, begin))
    assert "`save_checkpoint`" in result("PD204", case_of(tmp_path, builder)).remedy


def test_batches_are_pinned_first(tmp_path: Path) -> None:
    """What only comes from the host is a batch; nothing is copied back."""
    to_device = result("PD204", case_of(tmp_path / "a", copying(200, pinned=(False, False)))).remedy
    back = result("PD204", case_of(tmp_path / "b", copying(200, "device_to_host"))).remedy
    assert to_device.startswith("Copy from pinned memory")
    assert back.startswith("Keep data on the device")


def test_what_is_no_python_copies_by_cuda(tmp_path: Path) -> None:
    """A TensorRT engine, in whichever order: copies that only come from the host, and those that go back."""
    for kind in ("host_to_device", "device_to_host"):
        remedy = result("PD204", case_of(tmp_path / kind, copying(200, kind, "gemm_kernel_trt"))).remedy
        assert "cudaMemcpyAsync from pinned memory" in remedy
        assert "pin_memory" not in remedy


def test_fp32_is_twice_the_bytes(tmp_path: Path) -> None:
    """By the names of the GEMMs; copies to the host and BF16 GEMMs say nothing of that."""
    words = "16 bits halve their bytes"
    assert words in result("PD204", case_of(tmp_path, copying(50, gemm=SGEMM))).remedy
    assert words not in result("PD204", case_of(tmp_path, copying(50))).remedy
    assert words not in result("PD204", case_of(tmp_path, copying(50, "device_to_host", SGEMM))).remedy


def test_fewer_layers_wait_on_the_host(tmp_path: Path) -> None:
    settings: dict[str, Value] = {"cpu_offloading": True, "cpu_offloading_num_layers": 9, "num_layers": 32}
    found = result("PD204", case_of(tmp_path, copying(100), settings=settings))
    assert (settings_of(found), found.remedy) == ({"cpu_offloading_num_layers": 4}, "")
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.1))
    # Other copies than those of layers; and nothing to take away.
    on_device = case_of(tmp_path, copying(100, "device_to_device"), settings=settings)
    assert result("PD204", on_device).advice == []
    for change in ({"cpu_offloading": False}, {"cpu_offloading_num_layers": 1}):
        case = case_of(tmp_path, copying(100), settings={**settings, **change})
        assert result("PD204", case).advice == []


def test_copies_inside_the_device_need_something_else(tmp_path: Path) -> None:
    found = result("PD204", case_of(tmp_path, copying(200, "device_to_device")))
    assert (found.state, "pin_memory" in found.remedy, "clone()" in found.remedy) == ("fires", False, True)


def test_compute_hides_no_more_than_there_is_of_it(tmp_path: Path) -> None:
    """900 of 1,000 us copy before 100 us of compute: overlap hides 100, fewer bytes save up to all of it."""
    found = result("PD204", case_of(tmp_path, copying(900)))
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.9))
    assert ("fewer bytes" in found.reason, "less" in found.action) == (True, True)
    half = result("PD204", case_of(tmp_path, copying(500)))
    assert (gain_of(half).high_ms, "fewer bytes" in half.reason) == (pytest.approx(0.5), False)
    assert found.remedy.startswith("Keep data on the device")  # overlap is the lesser part
    # From pageable memory it is the memory that slows them: pinned, the same bytes take less.
    pageable = result("PD204", case_of(tmp_path, copying(900, pinned=(False, False))))
    assert pageable.remedy.startswith("Copy from pinned memory")
    assert ("pinned memory" in pageable.reason, "pinned" in pageable.action) == (True, True)
    back = result("PD204", case_of(tmp_path, copying(900, "device_to_host", pinned=(False, False))))
    assert (back.remedy.startswith("Keep data"), "less" in back.action) == (True, True)


def test_communication_is_no_copy(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    thread.range("perfdoc.step 0", 0, 1000 * US)
    device.kernel(GEMM, 0, 500 * US, launch=(thread, 1, 2))
    device.copy("peer_to_peer", 4096, 500 * US, 900 * US, stream=9, launch=(thread, 3, 4))
    device.copy("device_to_host", 4096, 600 * US, 900 * US, stream=10, launch=(thread, 5, 6))
    device.kernel(ALL_REDUCE, 900 * US, 1000 * US, stream=20, launch=(thread, 7, 8))
    found = result("PD204", case_of(tmp_path, builder))
    assert (found.state, evidence_of(found)[0]) == ("passes", "0.0 %")


def test_the_copies_of_a_real_capture(shared_traces: Path, tmp_path: Path) -> None:
    """450 copies to two devices, and as many on them: all of the window, start-up or not, is copying."""
    path = shared_traces / "nsys" / "host_bound_2gpu_h100.sqlite"
    if not path.exists():
        pytest.skip("host_bound_2gpu_h100 is not among the shared traces")
    found = result("PD204", Case.of([measure_capture(path, WindowRequest())]))
    assert (found.state, found.evidence[0].value, found.gain_per) == ("fires", "97.0 %", "window")
    assert found.evidence[1].value.startswith("225 a window, 23.7 GiB, 921 ms exposed")
    assert [e.label for e in found.evidence[1:]] == ["host to device", "device to device"]
    assert "16 bits halve their bytes" in found.remedy


@pytest.mark.parametrize(("kernel_us", "level"), [(49, "problem"), (51, "information")])
def test_a_whole_capture_holds_what_is_loaded_at_the_start(
    tmp_path: Path, kernel_us: int, level: str
) -> None:
    builder, thread, device = one_gpu()
    copied = (100 - kernel_us) * US
    device.copy("host_to_device", 1 << 20, 0, copied, stream=9, launch=(thread, 0, 1))
    device.kernel(GEMM, copied, 100 * US, launch=(thread, 2, 3))
    found = result("PD204", case_of(tmp_path, builder))
    assert (found.state, found.level) == ("fires", level)
    assert found.false_alarm.startswith("The window is the whole capture")


@pytest.mark.parametrize(
    ("gpu", "shared"), [("Orin", True), ("NVIDIA GB10", True), ("NVIDIA GH200 480GB", False)]
)
def test_where_cpu_and_gpu_share_memory_nothing_need_be_copied(
    gpu: str, shared: bool, tmp_path: Path
) -> None:
    case = case_of(tmp_path, copying(200))
    of_gpu = [replace(r, device=replace(r.device, gpu_name=gpu)) for r in case.captures[0].ranks]
    found = result("PD204", replace(case, captures=[replace(case.captures[0], ranks=of_gpu)]))
    assert (found.state, "cudaHostAllocMapped" in found.remedy) == ("fires", shared)
