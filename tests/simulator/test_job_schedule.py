"""The schedule of a step with its messages, against the perfect one and exchanges worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.pipeline.layout import perfect_schedule
from perfdoc.simulator.job.schedule import Window, run_schedule

TIMES = st.integers(1, 50).map(float)


def run(
    forward: Sequence[Sequence[float]],
    backward: Sequence[Sequence[float]],
    micro_batches: int,
    **more: object,
) -> Window:
    settings: dict[str, object] = {"message": 0.0, "overlap": False, **more}
    return run_schedule(
        micro_batches=micro_batches,
        forward=forward,
        backward=backward,
        **settings,  # type: ignore[arg-type]
    )


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_without_messages_it_is_the_perfect_schedule(
    data: st.DataObject, pp: int, vpp: int, groups: int, overlap: bool
) -> None:
    chunks = vpp if pp > 1 else 1
    takes = [
        [data.draw(st.lists(TIMES, min_size=chunks, max_size=chunks)) for _ in range(pp)] for _ in range(2)
    ]
    count = groups * pp if chunks > 1 else groups
    perfect = perfect_schedule(vpp=chunks, micro_batches=count, forward=takes[0], backward=takes[1])
    assert perfect is not None
    assert run(*takes, count, overlap=overlap or chunks > 1).length == pytest.approx(perfect.window)


def test_blocking_exchanges_of_two_stages() -> None:
    """Forwards of 10, backwards of 20, messages of 1; two micro-batches.

    Stage 0: F0 0-10, sends 10-11, F1 11-21, then sends F1 and receives B0 in one exchange with stage 1,
    which has done F0 and B0 from 11 to 41: 41-42. B0 42-62 here, F1 and B1 there 42-72, message 72-73,
    B1 73-93.
    """
    window = run([[10], [10]], [[20], [20]], 2, message=1.0)
    assert window.start == (0, 11)
    assert window.end == (93, 72)


def test_blocking_holds_up_the_sender_too() -> None:
    """A slow second stage (30 and 60): stage 0 stands still in its exchange until 101.

    Stage 1: F0 11-41, B0 41-101; exchange 101-102; F1 102-132, B1 132-192. Stage 0: B0 102-122, the message
    192-193, B1 193-213.
    """
    window = run([[10], [30]], [[20], [60]], 2, message=1.0)
    assert window.end == (213, 192)


def test_messages_beside_compute_delay_only_who_waits() -> None:
    """The same with overlap: F1 begins at 10, as F0 is still on its way.

    Stage 1: F0 11-21, B0 21-41. Stage 0 receives its gradient at 42: B0 42-62. F1 was done at 20 here; its
    receive was posted at 21 and takes until 22; F1 41-51, B1 51-71 there. B1 here 72-92.
    """
    window = run([[10], [10]], [[20], [20]], 2, message=1.0, overlap=True)
    assert window.start == (0, 11)
    assert window.end == (92, 71)


def test_a_receive_is_posted_when_the_pass_before_is_done() -> None:
    """A message of 8 beside passes of 10: F0 arrives at 18 and is done at 28, so F1, done at 20, is received
    from 28 to 36 and not from 20 to 28."""
    window = run([[10], [10]], [[1], [1]], 3, message=8.0, overlap=True)
    # Stage 1: F0 18-28, B0 28-29, F1 36-46, B1 46-47. Stage 0: B0 37-38, F2 38-48. Stage 1: F2 56-66,
    # B2 66-67. Stage 0: B2 75-76.
    assert window.end == (76, 67)
    later = run([[10], [30]], [[1], [1]], 2, message=8.0, overlap=True)
    # Stage 1: F0 18-48, B0 48-49; F1, done at 20, posted at 48: 56-86, B1 86-87. Stage 0: B1 95-96.
    assert later.end == (96, 87)


def test_interleaved_and_blocking_takes_a_message_in_every_pass() -> None:
    takes = [[[10.0, 10.0]] * 2, [[20.0, 20.0]] * 2]
    longer = [[[13.0, 13.0]] * 2, [[23.0, 23.0]] * 2]
    assert run(*takes, 4, message=3.0).length == run(*longer, 4, message=3.0, overlap=True).length


def test_the_first_micro_batch_is_longer_in_every_chunk() -> None:
    assert run([[10.0]], [[20.0]], 3, first_extra=[5.0]).length == 3 * 30 + 5
    plain, extra = (
        run([[10, 10], [10, 10]], [[20, 20], [20, 20]], 2, overlap=True, first_extra=e)
        for e in ([], [5.0, 5.0])
    )
    # Both stages wait for weights, one after the other: two chunks of two stages.
    assert extra.length == plain.length + 4 * 5


@pytest.mark.parametrize(
    ("pp", "vpp", "count", "said"),
    [(2, 2, 3, "not a multiple of 2 stages"), (2, 1, 10**6, "4,000,000 passes"), (1, 1, 10**9, "passes")],
)
def test_what_is_no_schedule_is_refused(pp: int, vpp: int, count: int, said: str) -> None:
    takes = [[1.0] * vpp] * pp
    with pytest.raises(ValueError, match=said):
        run(takes, takes, count)
