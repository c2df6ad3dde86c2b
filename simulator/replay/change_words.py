"""What a change is called where somebody reads of it: by what is done and the setting that does it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perfdoc.analyzers.device.activity import DIMENSIONS

_VPP = "virtual_pipeline_model_parallel_size"

CHANGE_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "without_gc": "no garbage collection in steps (manual_gc)",
        "without_data": "no waiting for data (dataloader_num_workers)",
        "without_launches": "CUDA graphs (cuda_graph_impl)",
        "norms_alone": "norms not slowed by communication beside them",
        "fp8_gemm": "matrix products in FP8 (fp8)",
        "overlapped_dp": "DP communication behind compute (overlap_grad_reduce, overlap_param_gather)",
        "overlapped_tp": "TP communication behind compute (tp_comm_overlap)",
        "overlapped_cp": "CP communication behind compute",
        "overlapped_ep": "EP communication behind compute (overlap_moe_expert_parallel_comm)",
        "without_queueing_tp": "TP communication in a queue of its own (cuda_device_max_connections)",
        "buckets_x4": "larger DP buckets{} (bucket_size)",
        "buckets_x0.25": "smaller DP buckets{} (bucket_size)",
        "dp_half_bytes": "gradients reduced in half the bytes (grad_reduce_in_fp32)",
        "without_recompute": "no recomputation of activations (recompute_granularity)",
        "more_virtual_stages": f"more virtual stages{{}} ({_VPP})",
        "fewer_virtual_stages": f"fewer virtual stages{{}} ({_VPP})",
        "even_stages": "stages of exactly the same work",
        "even_layers": "as many layers on every stage",
        "balanced_layers": "layers spread by what stages take",
        **{
            f"without_straggler_{d}": f"{{}} computing as fast as the rest of its {d.upper()} group"
            for d in DIMENSIONS
            if d != "unknown"
        },
        "without_straggler_unknown": "{} computing as fast as the rest of its group",
    }
)
"""By key of the prediction; {} is what it was tried with. In brackets the settings that do it, where there
are any."""


def change_words(key: str, tried_with: str = "") -> str:
    """What the change is called; a key that is not in the table is its own name.

    >>> change_words("buckets_x4", " of 1,000 bytes")
    'larger DP buckets of 1,000 bytes (bucket_size)'
    """
    # Not str.format on anything but the table's own text: names of ranks come from traces.
    before, hole, after = CHANGE_WORDS.get(key, key).partition("{}")
    return before + tried_with + after if hole else before
