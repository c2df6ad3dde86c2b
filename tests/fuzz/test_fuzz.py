"""A few hundred damaged inputs in every run of the suite; `make fuzz MINUTES=60` makes thousands."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from perfdoc.rules.engine import registry
from tests.amount import tries
from tests.fuzz import kinds, oracle
from tests.fuzz.kinds import KINDS

SHARE = {
    "memory-bytes": 20,
    "memory-values": 8,
    "kineto-bytes": 3,
    "kineto-gzip": 4,
    "nsys-bytes": 2,
    "summary-bytes": 10,
    "summary-values": 3,
}
"""Of inputs, by how quickly they are judged."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bases")


@pytest.mark.parametrize("kind", KINDS)
def test_any_input_is_diagnosed_or_refused(
    kind: str, tmp_path: Path, bases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To repeat one: python -m tests.fuzz --only KIND:SEED"""
    monkeypatch.setattr(oracle, "RENDER_ALL_FRAC", 0.1)
    for seed in range(tries(2, 20) * SHARE.get(kind, 1)):
        try:
            kinds.run(kind, seed, tmp_path, bases, limit_s=120)  # of a machine that others use
        except Exception as error:
            raise AssertionError(f"{kind}:{seed}: {error}") from error


def test_the_count_from_boundary_to_boundary() -> None:
    """Against nanosecond by nanosecond."""
    rng = Random(0)
    for _ in range(200):
        spans = [(a, a + rng.randrange(-2, 9)) for a in (rng.randrange(40) for _ in range(rng.randrange(8)))]
        start = rng.randrange(30)
        end = start + rng.randrange(20)
        expected = sum(any(a <= t < b for a, b in spans) for t in range(start, end))
        assert oracle.covered(spans, start, end) == expected


def test_what_the_oracle_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong sum and Python's own words."""
    capture = kinds.kineto.events(Random(0), tmp_path, tmp_path)
    capture.write_bytes(kinds.base.content(tmp_path, "json", 0, "new"))
    assert oracle.analysed([capture], Random(0)) == "1 ranks"
    for wrong in ((0, 0, 0, 0), (5, 1, 2, 3)):
        with monkeypatch.context() as patch:
            patch.setattr(oracle, "covered", lambda *given, wrong=wrong: wrong[len(given)])
            with pytest.raises(oracle.Found, match="busy"):
                oracle.analysed([capture], Random(0))
    with pytest.raises(oracle.Found, match="own words"):
        oracle._one_line("x.json: 'utf-8' codec can't decode byte 0xff.")


def test_rules_that_crash_or_hang_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine goes on with the next rule after any Exception."""
    capture = tmp_path / "rank0.json"
    capture.write_bytes(kinds.base.content(tmp_path, "json", 0, "new"))

    def crash(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(registry, "verdict_of", crash)
    with pytest.raises(oracle.Found, match="ZeroDivisionError"):
        oracle.analysed([capture], Random(0))
    monkeypatch.setattr(registry, "verdict_of", lambda *_: time.sleep(10))
    with pytest.raises(oracle.Found, match="more than 1 s"), oracle.in_time(1):
        oracle.analysed([capture], Random(0))


def test_a_hang_is_found() -> None:
    with oracle.in_time(5):
        pass
    with pytest.raises(oracle.Found, match="more than 1 s"), oracle.in_time(1):
        time.sleep(10)
