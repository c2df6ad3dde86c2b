"""Recomputing norms and activations without Transformer Engine.

Call site: tensor_parallel/random.py, `CheckpointWithoutOutput(fp8=False)`: anything but None means "FP8 is
on" and then uses Transformer Engine's FP8 state, whose names are not bound when the package is missing.
"""

from __future__ import annotations

from typing import Any


def install_recompute() -> None:
    """Without Transformer Engine there is no FP8."""
    from megatron.core.tensor_parallel.random import CheckpointWithoutOutput

    create = CheckpointWithoutOutput.__init__

    def create_without_fp8(self: Any, fp8: Any = None) -> None:
        del fp8
        create(self, None)

    CheckpointWithoutOutput.__init__ = create_without_fp8
