"""megatron-core inside the test process: with the adaptation that tests of the trainer need as well."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import Any

import pytest


def import_core(name: str) -> Any:
    """A module of megatron-core; skips where it is not installed.

    The adaptation has to come before the first import of megatron-core in a process, whichever test that is.
    """
    if any(importlib.util.find_spec(package) is None for package in ("torch", "megatron")):
        pytest.skip("megatron-core is not installed: pip install 'perfdoc[train]'")
    adapt = importlib.import_module("perfdoc.trainer.adapt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says what of Transformer Engine and Apex is missing
        adapt.prepare()
        return importlib.import_module(name)
