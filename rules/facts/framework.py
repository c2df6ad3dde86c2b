"""Whose job it is: in whose words settings and changes are named."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import PYTORCHS
from perfdoc.results.headline import Framework


def framework_of_job(captures: Sequence[CaptureMeasurement], configuration: Configuration) -> Framework:
    """Settings that were given say it, being Megatron's or PyTorch's; else what every capture shows."""
    if configuration.dialect in PYTORCHS:
        return "pytorch"
    if configuration.dialect is not None:
        return "megatron"
    shown = {capture.framework for capture in captures}
    return "megatron" if "megatron" in shown else shown.pop() if len(shown) == 1 else ""
