"""A manifest of two CPU ranks for tests of the gate."""

from __future__ import annotations

import msgspec

from perfdoc.profiling.manifest import ConfigValue, Flops, Manifest
from tests.profiling.build import a_manifest


def tiny_manifest(*, bucket_size: int, created_utc: str) -> Manifest:
    """Two ranks without GPUs, 1e12 FLOPs a step."""
    whole = a_manifest()
    return msgspec.structs.replace(
        whole,
        created_utc=created_utc,
        layout=msgspec.structs.replace(whole.layout, world_size=2, data=1),
        hardware=msgspec.structs.replace(whole.hardware, gpus=()),
        config={"bucket_size": ConfigValue(value=bucket_size, origin="command line")},
        flops=Flops(per_step=10**12, convention="as written here"),
    )
