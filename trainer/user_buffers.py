"""Transformer Engine's user buffers, through which tensor-parallel communication runs beside GEMMs.

Its layers look their buffers up by name, so `tp_comm_overlap` without them ends in the first forward pass.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfdoc.trainer.config.resolve import read_yaml
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.layout import Layout

GEMMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ring_exchange": ("qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad"),
        "pipeline": ("proj_fprop", "fc2_fprop"),
        "bulk": ("qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad"),
    }
)
"""Transformer Engine's method → the GEMMs that it overlaps so by default."""
FIELDS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "tp_overlap_num_sm": ("num_sm", ("pipeline", "bulk")),
        "tp_overlap_cga_size": ("cga_size", ("pipeline", "bulk")),
        "tp_overlap_num_splits": ("num_splits", ("pipeline",)),
        "tp_overlap_fp8_buf": ("fp8_buf", ("pipeline",)),
    }
)
"""Setting → its field of a GEMM's configuration, and the methods that read it."""


def overlap_of_gemms(config: Config) -> dict[str, dict[str, Any]] | None:
    """What is asked for by GEMM, from the file or the settings; None: Transformer Engine's own choice.

    Raises ValueError for a file that holds something else.
    """
    if config.overlap.tp_comm_overlap_cfg is not None:
        return _from_file(Path(config.overlap.tp_comm_overlap_cfg))
    asked: dict[str, dict[str, Any]] = {}
    for setting, (field, methods) in FIELDS.items():
        value = getattr(config.overlap, setting)
        for method in methods if value is not None else ():
            for gemm in GEMMS[method]:
                asked.setdefault(gemm, {"method": method})[field] = value
    return asked or None


def _from_file(path: Path) -> dict[str, dict[str, Any]]:
    where = f"overlap.tp_comm_overlap_cfg = {path}"
    try:
        found = read_yaml(path)
    except ValueError as error:
        raise ValueError(f"overlap.tp_comm_overlap_cfg: {error}") from error
    known = {gemm for gemms in GEMMS.values() for gemm in gemms}
    for gemm, fields in found.items():
        if gemm not in known:
            raise ValueError(f"{where}: {gemm} is no GEMM of these: {', '.join(sorted(known))}")
        if not isinstance(fields, dict) or fields.get("method", "bulk") not in GEMMS:
            raise ValueError(f"{where}: {gemm} wants fields, with a method of {', '.join(GEMMS)}")
    return found


def start_user_buffers(config: Config, layout: Layout) -> None:
    """Allocate the buffers, where tensor-parallel overlap is on; every rank calls it, once."""
    if not config.overlap.tp_comm_overlap:
        return
    base: Any = importlib.import_module("transformer_engine.pytorch.module.base")
    tokens = config.model.seq_length * config.training.micro_batch_size // layout.cp
    given: dict[str, Any] = {
        "shape": [tokens, config.model.hidden_size],
        "tp_size": layout.tp,
        "ub_cfgs": overlap_of_gemms(config),
        "bootstrap_backend": "nccl",
    }
    in_fp8 = config.precision.fp8 is not None
    modes = getattr(base, "UserBufferQuantizationMode", None)  # Transformer Engine 2.7 and later
    if modes is None:
        base.initialize_ub(**given, use_fp8=in_fp8)
        return
    quantization = [modes.FP8 if in_fp8 else modes.NONE]
    if in_fp8 and config.precision.first_last_layers_bf16:
        quantization.append(modes.NONE)
    base.initialize_ub(**given, quantization_modes=quantization)
