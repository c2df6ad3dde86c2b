"""megatron-core's own ranges on a CPU build of torch.

Call site: megatron.core.utils.nvtx_range_push calls `torch.cuda.nvtx.range_push`, which raises in a CPU
build.
The ranges go where the trainer's own go.
"""

from __future__ import annotations

from typing import Any

import torch

from perfdoc.profiling import ranges


def _push(message: str) -> int:
    ranges.push(message)
    return 0


def _pop() -> int:
    ranges.pop()
    return 0


def _mark(message: str) -> None:
    ranges.mark(message)


def install_nvtx() -> None:
    """Replace the three functions of torch.cuda.nvtx that are used."""
    nvtx: Any = torch.cuda.nvtx
    nvtx.range_push = _push
    nvtx.range_pop = _pop
    nvtx.mark = _mark
