"""What is measured once, by device and software."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from perfdoc.peak import store
from perfdoc.peak.store import Setting
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.measured import MeasuredCeilings, Rate

SETTING = Setting(kind="cpu", ranks=2)


def found(best: float) -> MeasuredCeilings:
    return MeasuredCeilings(
        device="a CPU",
        kind="cpu",
        ranks=2,
        threads=1,
        flops={"fp32": Rate(best=best, spread_frac=0.0, repeats=3, what="GEMM of 8 x 8 x 8")},
        memory={},
        collectives={},
        missing={},
        versions={},
        measured_utc="2026-11-23T09:00:00Z",
    )


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[MeasuredCeilings]:
    """What the next measurements find; empty: they fail."""
    left: list[MeasuredCeilings] = []

    def measure(setting: Setting) -> MeasuredCeilings:
        if not left:
            raise UserError("nothing can be measured")
        return left.pop(0)

    monkeypatch.setenv("PERFDOC_STATE", str(tmp_path))
    monkeypatch.setattr(store, "measure", measure)
    return left


def best(setting: Setting = SETTING, *, again: bool = False) -> tuple[float, bool]:
    got, now = store.ceilings(setting, again=again)
    return got.flops["fp32"].best, now


def test_it_is_measured_once(measured: list[MeasuredCeilings]) -> None:
    measured += [found(5e9)]
    assert best() == (5e9, True)
    assert best() == (5e9, False)


def test_again_forgets_what_is_stored(measured: list[MeasuredCeilings]) -> None:
    measured += [found(5e9), found(4e9)]
    best()
    assert best(again=True) == (4e9, True)
    assert best() == (4e9, False)


def test_other_conditions_are_measured_for_themselves(
    measured: list[MeasuredCeilings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    measured += [found(5e9), found(9e9), found(7e9)]
    best()
    assert best(Setting(kind="cpu", ranks=1)) == (9e9, True)
    # Several ranks have one thread each, as torchrun gives them, unless told otherwise.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert best() == (5e9, False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert best() == (7e9, True)


def test_a_measurement_that_fails_stores_nothing(measured: list[MeasuredCeilings]) -> None:
    with pytest.raises(UserError):
        best()
    measured += [found(5e9)]
    assert best() == (5e9, True)


def test_a_file_that_cannot_be_used_is_measured_anew(measured: list[MeasuredCeilings]) -> None:
    path = store.stored_path(SETTING)
    assert path is not None
    path.parent.mkdir(parents=True)
    good = msgspec.json.encode(found(1e9))
    for content in (
        b"{}",
        b"[" * 100_000,
        good.replace(b"1000000000.0", b"-1"),
        b" " * (store.MAX_BYTES + 1) + good,
    ):
        path.write_bytes(content)
        measured += [found(5e9)]
        assert best() == (5e9, True), content[:20]
