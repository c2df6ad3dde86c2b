"""Which setting of torchtitan's is the micro-batch."""

from __future__ import annotations

from typing import Literal

from perfdoc.knobs.configuration import Configuration

_PP = "pipeline_model_parallel_size"


def titans_micro_batch(
    configuration: Configuration,
) -> Literal["local_batch_size", "pipeline_microbatch_size"] | None:
    """With a pipeline the samples of a rank are cut once more. None where whether there is one is not known;
    a file that does not name it has none."""
    if _PP in configuration.unknown:
        return None
    pp = configuration.values.get(_PP)
    return "pipeline_microbatch_size" if isinstance(pp, int) and pp > 1 else "local_batch_size"
