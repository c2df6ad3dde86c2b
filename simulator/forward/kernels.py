"""Kernels that a simulated step is made of: names as real libraries have them, and grids."""

from __future__ import annotations

from typing import NamedTuple

from perfdoc.records import dataclass

_TE = (
    "void transformer_engine::normalization::{}<transformer_engine::normalization::Kernel_traits<{}>>(Params)"
)
_TRAITS = "__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, unsigned int, 8192u"
_SDPA = "cudnn_generated_fort_native_sdpa_sm{}_flash_{}_wgmma_f16_knob_{}_4x1x1_kernel0_0"
_ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>(int, T2, T3)"


class Kernel(NamedTuple):
    """A kernel's name and shape."""

    name: str
    full_name: str
    grid: int
    block: int


@dataclass(frozen=True, kw_only=True)
class KernelNames:
    """The kernels of one GPU."""

    sm_count: int
    arch: int

    def gemm(self, columns: int, rows: int) -> Kernel:
        """A GEMM whose result has so many rows and columns, in tiles of 128 x 256."""
        kind = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT"
        if self.arch < 90:
            kind = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"
        tiles = max(1, -(-rows // 128) * -(-columns // 256))
        return Kernel(kind, kind, min(tiles, self.sm_count), 384)

    def attention(self, *, backward: bool, blocks: int) -> Kernel:
        """Fused attention."""
        way, knob = ("bprop", "26_128x64x128") if backward else ("fprop", "7_64x128x128")
        name = _SDPA.format(self.arch, way, knob)
        return Kernel(name, name, max(1, blocks), 256)

    def norm(self, *, backward: bool) -> Kernel:
        """RMSNorm, one persistent block on every multiprocessor."""
        name = "rmsnorm_bwd_tuned_kernel" if backward else "rmsnorm_fwd_tuned_kernel"
        return Kernel(name, _TE.format(name, _TRAITS), self.sm_count, 128)

    def elementwise(self, functor: str, elements: int) -> Kernel:
        """A kernel over so many elements."""
        return Kernel(
            "vectorized_elementwise_kernel", _ELEMENTWISE.format(functor), max(1, elements // 1024), 128
        )

    def plain(self, name: str, *, blocks: int = 0) -> Kernel:
        """Any other."""
        return Kernel(name, f"void {name}(Params)", blocks or self.sm_count, 256)


ADD = "CUDAFunctor_add<c10::BFloat16>"
SWIGLU = "BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, SwiGLU>"
ADAM = Kernel(
    "multi_tensor_apply_kernel",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<float, float, int>>(T1, T2)",
    320,
    512,
)
L2_NORM = Kernel(
    "multi_tensor_apply_kernel",
    "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<__nv_bfloat16>>(T1, T2)",
    320,
    512,
)
_NCCL = "{}(ncclDevKernelArgsStorage<(unsigned long)4096>)"
CALLS = {
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "all_reduce": "ncclAllReduce",
    "all_to_all": "",
    "send_recv": "",
}
"""NCCL's call by operation; empty: a group of sends and receives."""


def nccl_kernel(operation: str, *, dtype: str = "bf16") -> Kernel:
    """NCCL's kernel of an operation; its name tells neither algorithm nor protocol."""
    name = {
        "all_gather": "ncclDevKernel_AllGather_RING_LL",
        "reduce_scatter": f"ncclDevKernel_ReduceScatter_Sum_{dtype}_RING_LL",
        "all_reduce": f"ncclDevKernel_AllReduce_Sum_{dtype}_RING_LL",
        "all_to_all": "ncclDevKernel_SendRecv",
        "send_recv": "ncclDevKernel_SendRecv",
    }[operation]
    return Kernel(name, _NCCL.format(name), 24 if operation in ("all_gather", "reduce_scatter") else 16, 640)
