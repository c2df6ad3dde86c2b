"""torch, which takes torchrun's words apart, may be missing."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture
def needs_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
