"""A step laid launch by launch, for tests of what its kernels are part of."""

from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernels.attributed import attributed_kernels
from perfdoc.analyzers.kernels.parts import kernel_parts
from perfdoc.results.kernels import KernelPartsAnalysis
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.device_views import view_of
from tests.captures.process import ThreadBuilder
from tests.captures.timeline import TimelineBuilder

FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(Params)"
FLASH_BACKWARD = "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<traits>(Params)"
NORM = "rmsnorm_fwd_tuned_kernel"
ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(x)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
SCALE = 1_000


class Plan:
    """Launches follow one another by 10 us of host time; kernels run one after another, 1 us apart."""

    def __init__(self) -> None:
        self.builder = TimelineBuilder()
        self.process = self.builder.process()
        self.main = self.process.thread()
        self.autograd = self.process.thread(name="pt_autograd_0")
        self.device = self.process.device()
        self.host = 0
        self.end = 10_000

    def kernel(self, name: str, micros: int, thread: ThreadBuilder | None = None) -> None:
        start = max(self.end, self.host + 5_000) + 1_000
        self.end = start + micros * SCALE
        self.device.kernel(
            name, start, self.end, launch=(thread or self.main, self.host + 1_000, self.host + 2_000)
        )
        self.host += 10_000

    def operator(self, name: str, thread: ThreadBuilder, start: int, end: int) -> None:
        self.process.operator(thread, name, start, end)

    def measure(self, folder: Path, facts: JobFacts | None = None) -> KernelPartsAnalysis:
        return parts_of(view_of(self.builder, folder, facts))


def parts_of(view: DeviceView) -> KernelPartsAnalysis:
    """The parts of the model on one device."""
    return kernel_parts(view, attributed_kernels(view))


def times(found: KernelPartsAnalysis) -> dict[tuple[str, str, str], int]:
    """Microseconds by part, phase and evidence."""
    assert len({(p.part, p.phase, p.evidence) for p in found.parts}) == len(found.parts)
    return {(p.part, p.phase, p.evidence): p.total_ns // SCALE for p in found.parts}
