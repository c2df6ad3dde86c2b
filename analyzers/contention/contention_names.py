"""What the name of a norm or a matrix product says beside its class: whose kernel it is, its element type."""

from __future__ import annotations

import re
from functools import lru_cache

from perfdoc.analyzers.kernel_class.kernel_name import MAX_TEXT

_FAMILIES = (
    (
        "transformer_engine",
        r"\btransformer_engine::|(?:^|::)(?:ln|rmsnorm)_(?:fwd|bwd)\w*_(?:tuned|general)_kernel",
    ),
    ("apex", r"(?:^|[\s:])cu(?:Apply|Compute)\w+|(?:^|[\s:])(?:ln_(?:fwd|bwd)|layer_norm::)"),
    ("cudnn", r"(?i)cudnn|(?:^|::)bn_(?:fw|bw)_"),
    ("inductor", r"^triton_(?:red|per|poi|tem|mm|bmm|addmm)_"),
    ("triton", r"^_\w*(?:norm|rms)\w*$|liger"),
    ("torch", r"\bat::native::"),
    (
        "cublas",
        r"^nvjet|\bcublas|splitKreduce_kernel|(?:^|_)(?:sm\d+_xmma|(?:ampere|volta|turing|hopper)_\w*gemm)|gemvx?::",
    ),
    ("cutlass", r"\bcutlass\w*::"),
    ("inference", r"\b(?:vllm|flashinfer|tensorrt_llm|sglang)::"),
)
"""Owner and a pattern in its names; the first that is found wins."""

_FAMILY = [(family, re.compile(pattern)) for family, pattern in _FAMILIES]

_TYPES = (
    ("bf16", r"bf16|[bB]float16|BFloat16"),
    ("f16", r"__half\b|\bc10::Half\b|\bhalf\b|(?<![a-z])f16|(?<![a-z])fp16|h16816"),
    ("f8", r"fp8|e4m3|e5m2|[fF]loat8"),
    ("f64", r"\bdouble\b"),
    ("f32", r"\bfloat\b"),
)
_TYPE = [(name, re.compile(pattern)) for name, pattern in _TYPES]


@lru_cache(maxsize=65536)
def family_of(full_name: str) -> str:
    """Library that the kernel comes from; "other" where the name does not say.

    Only Transformer Engine's norms obey its SM margins.
    """
    text = full_name[:MAX_TEXT]
    return next((family for family, pattern in _FAMILY if pattern.search(text)), "other")


@lru_cache(maxsize=65536)
def element_type_of(full_name: str) -> str:
    """Element type that the name carries: the narrowest one, since sums are kept in float; else empty."""
    text = full_name[:MAX_TEXT]
    found = {name for name, pattern in _TYPE if pattern.search(text)}
    return next((name for name in ("f8", "bf16", "f16", "f32", "f64") if name in found), "")
