"""What several rooms' tests share."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.amount import tries
from tests.reports.browser import BROWSER, NAMES

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# No test is timed: on a machine that others use, the first example of a property may take a second.
settings.register_profile("perfdoc", deadline=None, max_examples=tries(25, 200))
settings.load_profile("perfdoc")

# Thousands of small files are written whole, and no test is about what a loss of power leaves of them.
os.fsync = lambda descriptor: None

# A worker takes a second to start. Where a test is about workers it says how many, or starts a process.
os.cpu_count = lambda: 1

# What a shell runs in the background ignores interrupts, and so do the programs that tests start there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Until all tests are collected: what is made meanwhile is kept.
gc.disable()

ROOT = Path(__file__).resolve().parents[1]
SHARED_TRACES = ROOT.parent / "shared" / "traces"


# What perfdoc remembers of this machine is not the tests' to read or to write.
_STATE = tempfile.TemporaryDirectory(prefix="perfdoc-tests-")
os.environ.setdefault("PERFDOC_STATE", _STATE.name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Programs under nohup do not notice a hang-up, nor do those that tests start there."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN or not isinstance(item, pytest.Function):
        return
    if hasattr(item, "callspec") and any(v is signal.SIGHUP for v in item.callspec.params.values()):
        pytest.skip("hang-ups are ignored here: the tests run under nohup")


def pytest_collection_finish() -> None:
    """Collected tests live until the end: looking through them for garbage again and again takes 6 %."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    gc.enable()


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


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium of this machine; skips where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip("no Chromium is installed (" + ", ".join(NAMES) + ")")
    with sync_api.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()
