"""A PyTorch capture with operator shapes, laid by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.work.kernels import kernel_work
from perfdoc.analyzers.work.operator_work import KernelWork
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.device_views import views_of

GEMM = "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)"
FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)"
NORM_GRADIENT = "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float>(float const*)"
GAMMA_BETA = "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float>(long)"
BF16, FP32 = "c10::BFloat16", "float"


class ShapePlan:
    """Operators and kernels of one process; times in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.device_us = 1_000
        self.launched = 0

    def operator(
        self,
        name: str,
        start_us: int,
        end_us: int,
        *,
        dims: Any = None,
        dtypes: Any = None,
        values: Any = None,
        strides: Any = None,
        thread: int = 1,
        category: str = "cpu_op",
    ) -> None:
        """Add an operator; arguments that are None are not written."""
        given = {
            "Input Dims": dims,
            "Input type": dtypes,
            "Concrete Inputs": values,
            "Input Strides": strides,
        }
        args = {key: value for key, value in given.items() if value is not None}
        self._row(category, name, thread, start_us, end_us, args)

    def kernel(
        self,
        name: str,
        duration_us: int,
        at_us: int,
        *,
        thread: int = 1,
        call: str = "cudaLaunchKernel",
        node: int | None = None,
    ) -> int:
        """Add a kernel that is launched in [at, at + 1); its number in the order of the device."""
        self.launched += 1
        place: dict[str, Any] = {"device": 0, "stream": 7, "correlation": self.launched}
        self._row("cuda_runtime", call, thread, at_us, at_us + 1, {"correlation": self.launched})
        if node is not None:
            place["graph node id"] = node
        self._row("kernel", name, 7, self.device_us, self.device_us + duration_us, place, pid=0)
        self.device_us += duration_us
        return self.launched - 1

    def _row(
        self,
        category: str,
        name: str,
        thread: int,
        start: int,
        end: int,
        args: dict[str, Any],
        pid: int = 100,
    ) -> None:
        times = {"ts": start, "dur": end - start}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": thread, **times, "args": args}
        )

    def view(self, folder: Path, facts: JobFacts | None = None) -> DeviceView:
        """The device, read back from the file."""
        path = folder / "planted.json"
        path.write_text(json.dumps({"traceEvents": self.events, "baseTimeNanoseconds": 1}))
        (view,) = views_of(read_kineto(path), facts, whole=True)
        return view

    def work(self, folder: Path, facts: JobFacts | None = None) -> KernelWork:
        """The work of all of its kernels."""
        return work_of(self.view(folder, facts))


def work_of(view: DeviceView) -> KernelWork:
    """The work of every kernel of a device, in the order of their rows."""
    rows = np.sort(view.activity.kernel_rows)
    return kernel_work(view, rows)
