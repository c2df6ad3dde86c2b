"""An analysis of summaries says what one of the traces says; measurements survive as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from perfdoc.diagnose import measuring
from perfdoc.simulator.replay import unedited
from perfdoc.summaries import content
from perfdoc.summaries.codec import ARRAYS_RATIO, decode, encode
from perfdoc.traces import NoGpuActivityError, TraceError
from perfdoc.traces.columns import Column, pack_columns, unpack_columns
from perfdoc.traces.load import find_captures
from perfdoc.traces.summary_file import read_sections
from perfdoc.traces.table import F64, I64, Bool
from tests.amount import some
from tests.conftest import SHARED_TRACES
from tests.summaries.made import diagnosed, renamed, same, simulated, summarized, two_ranks

_REAL = sorted(p for f in ("kineto", "nsys") for p in (SHARED_TRACES / f).glob("*.*") if p.suffix != ".lock")
_QUICK = ("dlrm_8gpu_v100_rank0.pt.trace.json.gz", "cuda_graph_a100.sqlite", "cpu_only.json.gz")


@pytest.mark.parametrize("trace", some(_REAL, lambda p: p.name in _QUICK), ids=lambda p: p.name)
def test_real_traces(trace: Path, tmp_path: Path) -> None:
    (written,) = summarized(trace, tmp_path)
    try:
        expected = diagnosed([trace])
    except NoGpuActivityError as error:
        assert written.ranks == 0
        with pytest.raises(NoGpuActivityError) as found:
            diagnosed([written.path])
        said = found.value.what, found.value.remedy, found.value.holds
        expected_words = error.what, error.remedy, error.holds
    else:
        assert renamed(diagnosed([written.path]), written.path, trace) == expected
        return
    assert said == expected_words


def _alike(made: Sequence[Path], traces: Sequence[Path], config: Path | None = None, **options: Any) -> bytes:
    """The diagnosis of traces, which is that of what stands for them."""
    expected, found = diagnosed(traces, config, **options), diagnosed(made, config, **options)
    for new, old in zip(made, traces, strict=True):
        found = renamed(found, new, old) if new != old else found
    assert found == expected
    return expected


def test_two_ranks_and_a_mixture(tmp_path: Path) -> None:
    """Alone, beside a trace, with a fact that only the job's figures need, and without the replay."""
    traces = two_ranks(tmp_path / "job")
    made = [w.path for w in summarized(tmp_path / "job", tmp_path / "made")]
    usual = _alike(made, traces)
    assert _alike([made[0], traces[1]], traces) == usual
    assert _alike(made, traces, settings=["flops_per_step=1e12"]) != usual
    assert _alike(made, traces, replay=False) != usual
    bare = [w.path for w in summarized(tmp_path / "job", tmp_path / "bare", replay=False)]
    assert _alike(bare, traces, replay=False)
    assert all(b.stat().st_size < m.stat().st_size for b, m in zip(bare, made, strict=True))
    with pytest.raises(TraceError, match="--no-replay"):
        diagnosed(bare)


def test_the_bound_on_kept_tasks_is_that_of_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank may keep as much as two take; of four, those of the first pipeline alone may keep anything.
    A summary for a smaller share cannot stand for a larger one."""
    job, config = simulated(tmp_path, "pp=2,dp=2,micro_batches=2", 4), tmp_path / "job.yaml"
    traces = find_captures([str(job)])
    tasks = max(_tasks(w.path) for w in summarized(job, tmp_path / "some", ranks=1, config=config))
    for module in (unedited, content, measuring):
        monkeypatch.setattr(module, "KEPT_TASKS_MAX", 2 * tasks)
    for_one = [w.path for w in summarized(job, tmp_path / "for-one", ranks=1, config=config)]
    for_all = [w.path for w in summarized(job, tmp_path / "for-all", config=config)]
    kept = [b.stat().st_size > 0.9 * a.stat().st_size for a, b in zip(for_one, for_all, strict=True)]
    assert kept == [True, False, True, False]
    for count in (1, 2, 4):
        _alike(for_one[:count], traces[:count], config)
    _alike(for_all, traces, config)
    with pytest.raises(TraceError, match="--ranks"):
        diagnosed(for_all[:2], config)


@pytest.mark.slow
def test_sixty_four_ranks(tmp_path: Path) -> None:
    job = simulated(tmp_path, "tp=2,pp=4,dp=8,micro_batches=4", 64)
    traces = find_captures([str(job)])
    made = [w.path for w in summarized(job, tmp_path / "made")]
    _alike(made, traces)
    _alike(made[:8], traces[:8])


def _tasks(summary: Path) -> int:
    _, sections = read_sections(summary, [0])
    (above,) = decode(sections[0], content.Measured).above
    assert above.replay is not None
    return above.replay.tasks


_TYPES = (np.bool_, np.int8, np.int32, np.int64, np.uint64, np.float32, np.float64)
_SHAPES = arrays.array_shapes(max_dims=2, min_side=0, max_side=80)
_ARRAYS = st.sampled_from(_TYPES).flatmap(lambda dtype: arrays.arrays(dtype, _SHAPES))
_MOST = 1 << 24


@given(st.lists(_ARRAYS, max_size=5))
def test_any_arrays_come_back_bit_by_bit(given: list[Any]) -> None:
    """Of any values: the ends of their types, NaN with its bits, none at all, two axes."""
    columns, content = pack_columns(given)
    found = unpack_columns(columns, content, _MOST)
    assert same(given, found)
    assert all(f.flags.writeable for f in found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shape": (4,)}, "longer"),
        ({"shape": (2,)}, "shorter"),
        ({"shape": (1, 1, 3)}, "shape"),
        ({"shape": (-1, -3)}, "shape"),
        ({"shape": (1 << 62, 1 << 62)}, "longer"),
        ({"dtype": "i1", "width": 4, "shape": (0,)}, "coding"),
        ({"dtype": "i4", "width": 8, "shape": (0,)}, "wider"),
        ({"dtype": "b1"}, "truth"),
    ],
)
def test_columns_that_do_not_fit(change: dict[str, Any], said: str) -> None:
    column = {"dtype": "i8", "shape": (3,), "coding": "plain", "width": 1} | change
    with pytest.raises(ValueError, match=said):
        unpack_columns([Column(**column)], b"\x00\x01\x02", _MOST)


class _Kind(IntEnum):
    A = 1


@dataclass(frozen=True, kw_only=True)
class _Inner:
    start_ns: I64
    share: F64
    known: Bool


@dataclass(frozen=True, kw_only=True)
class _Outer:
    name: str
    kind: _Kind
    state: Literal["measured", "not"]
    count: int | None
    frac: float
    inner: Sequence[_Inner]
    by_name: dict[str, int]
    pair: tuple[int, int]


def _outer(**change: Any) -> _Outer:
    inner = _Inner(start_ns=np.arange(3), share=np.array([np.nan, 1.5, -1e18]), known=np.ones(3, bool))
    known: dict[str, Any] = {
        "name": "a/é\n",
        "kind": _Kind.A,
        "state": "measured",
        "count": None,
        "frac": 0.1,
        "inner": [inner, inner],
        "by_name": {"b": 1 << 62, "a": -1},
        "pair": (1, 2),
    }
    return _Outer(**known | change)


def test_dataclasses_by_their_types() -> None:
    """Numbers past 53 bits, order of keys, floats to the last bit."""
    value = _outer(frac=0.1 + 0.2)
    found = decode(encode(value), _Outer)
    assert same(value, found)
    assert type(found.kind) is _Kind
    assert found.frac == 0.30000000000000004


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"kind": 2},
        {"state": "other"},
        {"count": "1"},
        {"count": True},
        {"frac": float("nan")},
        {"inner": None},
        {"by_name": {"a": 1.5}},
        {"pair": (1, 2, 3)},
        {"inner": [_Inner(start_ns=np.arange(3.0), share=np.ones(3), known=np.ones(3, bool))]},  # type: ignore[arg-type]
        {"inner": [_Inner(start_ns=np.arange(2), share=np.ones(3), known=np.ones(3, bool))]},
        {"inner": [_Inner(start_ns=np.ones((3, 1), np.int64), share=np.ones(3), known=np.ones(3, bool))]},
    ],
    ids=str,
)
def test_what_is_not_of_its_type_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(encode(_outer(**change)), _Outer)


@given(st.binary(max_size=200), st.data())
def test_other_bytes_are_no_value(noise: bytes, data: st.DataObject) -> None:
    """Never anything but ValueError, whatever is written over a value's bytes."""
    content = bytearray(encode(_outer()))
    at = data.draw(st.integers(0, len(content)))
    content[at : at + len(noise)] = noise
    try:
        found = decode(bytes(content), _Outer)
    except ValueError:
        return
    total = sum(a.nbytes for i in found.inner for a in (i.start_ns, i.share, i.known))
    assert total <= ARRAYS_RATIO * len(content)
