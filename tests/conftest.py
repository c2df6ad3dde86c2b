"""What several rooms' tests share."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.amount import tries

# No test is timed: on a machine that others use, the first example of a property may take a second.
settings.register_profile("perfdoc", deadline=None, max_examples=tries(60, 1000))
settings.load_profile("perfdoc")

# Thousands of small files are written whole, and no test is about what a loss of power leaves of them.
os.fsync = lambda descriptor: None

ROOT = Path(__file__).resolve().parents[1]
SHARED_TRACES = ROOT.parent / "shared" / "traces"


def pytest_collection_finish() -> None:
    """Collected tests live until the end: looking through them for garbage again and again takes 6 %."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where files are distributed: those of the browser to one worker."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.together import Together

    return Together(config, log)


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of real traces that lies beside the repository; not part of it."""
    if not SHARED_TRACES.is_dir():
        pytest.skip("the real traces (../shared/traces beside the repository) are not here")
    return SHARED_TRACES
