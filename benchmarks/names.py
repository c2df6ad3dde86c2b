"""Names in a generated trace: kernels of the kinds that trainers run, NCCL's, CUDA calls, parts of layers."""

from __future__ import annotations

import numpy as np

_KERNELS = (
    ("nvjet_tst_{a}x{b}_64x4_1x2_h_bz_coopA_TNT", "nvjet_tst_{a}x{b}_64x4_1x2_h_bz_coopA_TNT"),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::Functor{n}<c10::BFloat16>, "
        "std::array<char *, (unsigned long)2>>(int, T2, T3)",
    ),
    (
        "flash_fwd_kernel",
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{a}, {b}, 64, 4, cutlass::bfloat16_t>, "
        "(bool)1>(flash::Flash_fwd_params, {n})",
    ),
    (
        "vectorized_layer_norm_kernel",
        "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float, {n}>(int, T2, const T1 *)",
    ),
    ("triton_poi_fused_add_mul_silu_{n}", "triton_poi_fused_add_mul_silu_{n}"),
)
NCCL = tuple(
    f"ncclDevKernel_{op}_RING_LL"
    for op in ("AllReduce_Sum_bf16", "AllReduce_Sum_f32", "ReduceScatter_Sum_bf16", "AllGather", "SendRecv")
)
_NAMES = 200
_PARTS = ("attn.fwd", "mlp.fwd", "norm.fwd", "attn.bwd", "mlp.bwd", "norm.bwd")
LAYERS = [f"layer{layer}.{part}" for layer in range(60) for part in _PARTS]


class Names:
    """StringIds, filled before any row refers to it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        compute = [
            tuple(t.format(a=64 << i % 3, b=32 * (1 + i % 8), n=i) for t in _KERNELS[i % len(_KERNELS)])
            for i in range(_NAMES - len(NCCL))
        ]
        self.short = self._add([short for short, _ in compute])
        self.full = self._add([full for _, full in compute])
        self.nccl = self._add([*NCCL])
        self.nccl_full = self._add(
            [f"{name}(ncclDevKernelArgsStorage<(unsigned long)4096>)" for name in NCCL]
        )
        self.launch, self.launch_ex, self.copy = self._add(
            ["cudaLaunchKernel_v7000", "cudaLaunchKernelExC_v11060", "cudaMemcpyAsync_v3020"]
        )
        self.layers = self._add(LAYERS)
        self.nccl_range = self._add(["ncclAllReduce", "ncclReduceScatter", "ncclAllGather"])

    def _add(self, texts: list[str]) -> np.ndarray:
        first = len(self.texts)
        self.texts += texts
        return np.arange(first, first + len(texts), dtype=np.int64)
