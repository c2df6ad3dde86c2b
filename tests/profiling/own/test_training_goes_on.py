"""Whatever a profiler or a training does wrong: the training goes on, and the next one begins clean."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfdoc.profiling import ranges, window
from perfdoc.profiling.own import following
from perfdoc.profiling.own.asked_window import AskedWindow
from perfdoc.profiling.own.hooks import Backwards
from perfdoc.profiling.own.loop import Loop
from perfdoc.profiling.own.megatron import BridgeCallback
from perfdoc.profiling.own.steps import marked, step, steps
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.session import Session
from perfdoc.profiling.vocabulary import BACKWARD
from perfdoc.profiling.window import ProfileWindow, TorchCapture


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    following.release()
    assert not ranges.on()


class OldProfile:
    """torch.profiler.profile before acc_events."""

    def __init__(self, *, activities: object = None, record_shapes: bool = False) -> None:
        self.record_shapes = record_shapes

    def prepare_trace(self) -> None:
        pass


def test_an_older_torch_gets_the_arguments_that_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    activity = SimpleNamespace(CPU="cpu", CUDA="cuda")
    module = SimpleNamespace(ProfilerActivity=activity, profile=OldProfile)
    monkeypatch.setattr(window, "importlib", SimpleNamespace(import_module=lambda name: module))
    capture = TorchCapture(RunDirectory.create(tmp_path / "run"), 0, 1, "cpu", shapes=True)
    capture.prepare()
    assert capture._profile.record_shapes


@pytest.mark.parametrize("error", [TypeError, AttributeError, ImportError, AssertionError])
def test_a_profiler_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(self: TorchCapture) -> None:
        raise error("no such thing\nand more")

    monkeypatch.setattr(TorchCapture, "prepare", fail)
    session = Session(
        RunDirectory.create(tmp_path / "run"),
        window=ProfileWindow(start=1, steps=1),
        profiler="torch",
        rank=0,
        world_size=1,
        device="cpu",
    )
    trained = []
    with session:
        for number in range(3):
            with session.step(number):
                trained.append(number)
    assert trained == [0, 1, 2]
    assert session.problem == "no such thing"


def test_a_session_that_cannot_begin_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Session) -> Session:
        raise AttributeError("module has no attribute 'all_reduce'")

    monkeypatch.setattr(Session, "__enter__", fail)
    given = following.windowed(ProfileWindow(start=0, steps=1), folder=tmp_path)
    assert following.use(given)
    trained = []
    for number in range(3):
        with step(number):
            trained.append(number)
    following.release()
    assert trained == [0, 1, 2]
    assert capsys.readouterr().err.count("all_reduce") == 1


@pytest.mark.parametrize("on_another_thread", [False, True])
def test_only_the_outermost_backward_changes_the_phase(
    monkeypatch: pytest.MonkeyPatch, on_another_thread: bool
) -> None:
    """As reentrant activation checkpointing does: two backwards within one, on CUDA on autograd's thread."""
    seen: list[object] = []

    def torchs(depth: int) -> None:
        seen.append(depth)
        for _ in range(2 if depth == 0 else 0):
            again = lambda: autograd.backward(1)  # noqa: E731
            if on_another_thread:
                thread = threading.Thread(target=again)
                thread.start()
                thread.join()
            else:
                again()

    autograd: Any = SimpleNamespace(backward=torchs)
    monkeypatch.setattr(importlib, "import_module", lambda name: autograd)
    told: Any = SimpleNamespace(phase=seen.append)
    backwards = Backwards(told)
    backwards.install()
    autograd.backward(0)
    autograd.backward(0)
    backwards.uninstall()
    assert seen == [BACKWARD, 0, 1, 1, None] * 2
    assert autograd.backward is torchs


def test_reentrant_checkpoints_are_one_backward(needs_torch: None) -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    seen: list[object] = []
    told: Any = SimpleNamespace(phase=seen.append)
    weight = torch.ones(2, 2, requires_grad=True)
    backwards = Backwards(told)
    backwards.install()
    try:
        found = weight
        for _ in range(3):
            found = checkpoint(torch.sin, found, use_reentrant=True)
        found.sum().backward()
    finally:
        backwards.uninstall()
    assert weight.grad is not None
    assert seen == [BACKWARD, None]


def test_what_a_failed_training_left_ends_where_the_next_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    undone: list[str] = []
    first = Loop((0, 9), tmp_path / "first")
    first.begins(at_end=lambda: undone.append("first"))
    first.step_begins(0)
    first.phase("perfdoc.forward")  # and then the training raised
    second = Loop((0, 1), tmp_path / "second")
    second.begins()
    assert undone == ["first"]
    assert first._step is None
    second.step_begins(0)
    second.step_ends()
    second.ends()
    first.ends()
    assert undone == ["first"]
    assert "not profiled" not in capsys.readouterr().err


def test_a_window_that_is_not_followed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert following.use(following.windowed(ProfileWindow(start=0, steps=1), folder=tmp_path / "first"))
    loop = Loop((0, 1), tmp_path / "second")
    loop.begins()
    loop.ends()
    assert "not profiled" in capsys.readouterr().err


def test_the_asked_session_is_made_at_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range before it, as around loading the model, comes before the rank and its GPU are known."""
    asked = AskedWindow(start=0, steps=1, ranks=None, profiler="torch", device="cpu", folder=str(tmp_path))
    made: list[int] = []

    def make(*_: object, **__: object) -> following.Windowed:
        made.append(1)
        return real(ProfileWindow(start=7, steps=1), folder=tmp_path)

    real = following.windowed
    monkeypatch.setattr(following, "_asked", asked)
    monkeypatch.setattr(following, "windowed", make)
    with marked("load the model"):
        assert not made
    assert not following.use(real(ProfileWindow(start=0, steps=1), folder=tmp_path)), (
        "what was asked for stays"
    )
    assert not made
    with step(0):
        assert made == [1]


class Sized:
    """Says that it has `said` batches, and has `there`."""

    def __init__(self, said: int, there: int) -> None:
        self.said, self.there = said, there

    def __len__(self) -> int:
        return self.said

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.there))


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        (Sized(3, 3), [5, 6, 7]),
        (Sized(0, 0), []),
        (Sized(2, 3), [5, 6, 7, 8]),  # from then on its length says nothing
        ((n for n in range(2)), [5, 6, 7]),
    ],
)
def test_no_step_is_left_around_the_end_of_the_data(
    monkeypatch: pytest.MonkeyPatch, batches: Any, expected: list[int]
) -> None:
    events: list[object] = []

    class Follower:
        def step(self, number: int) -> Any:
            events.append(number)
            return ranges.range("step")

    monkeypatch.setattr(following, "follower", Follower)
    got = list(steps(batches, start=5))
    assert events == expected
    assert got == list(range(len(got)))


def test_the_wait_for_a_batch_belongs_to_its_step() -> None:
    """Seen by the order of the calls: the step opens before the batch is asked for."""
    order: list[str] = []

    class Batches(Sized):
        def __iter__(self) -> Iterator[int]:
            for number in range(2):
                order.append(f"asked {number}")
                yield number
            order.append("end")

    class Follower:
        def step(self, number: int) -> Any:
            order.append(f"step {number}")
            return ranges.range("step")

        def look(self) -> bool:
            return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "follower", Follower)
        assert list(steps(Batches(2, 2))) == [0, 1]
    assert order == ["step 0", "asked 0", "step 1", "asked 1", "end"]


def test_what_a_user_adds_to_a_callback_may_end_the_training() -> None:
    """A failure of ours is told and no more; the user's own method may stop on purpose."""

    class Pruned(Exception):
        pass

    class Users(BridgeCallback):
        def on_step_end(self, context: Any) -> None:
            raise Pruned

    with pytest.raises(Pruned):
        Users().on_step_end(None)


def test_a_callback_that_failed_is_silent_in_its_own_training_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended: list[object] = []
    name = "on_train_end"
    wraps = type(
        "Wraps", (Loop,), {"__module__": "perfdoc.test", name: lambda self: ended.append(1 / self.n)}
    )
    first, second = wraps(), wraps()
    for loop, n in ((first, 0), (first, 1), (second, 1)):
        loop.n = n
        getattr(loop, name)()
    assert ended == [1.0]
    assert capsys.readouterr().err.count("division by zero") == 1
