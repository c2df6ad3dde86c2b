"""The measurement itself: what is counted, what is timed, and what a busy machine is."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdoc.cli.peak import format_table
from perfdoc.peak import store as measuring
from perfdoc.peak.store import Setting, last_cache_bytes, measure, usable_cpus, usable_memory_bytes
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.measured import MeasuredCeilings, Rate
from tests.command import perfdoc


def needs_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed (pip install 'perfdoc[train]')")


def test_a_quota_bounds_the_cpus(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    everything = usable_cpus(tmp_path / "none")
    for text, cpus in (("10000 100000", 0.1), ("max 100000", everything), ("nonsense", everything)):
        quota.write_text(text)
        assert usable_cpus(quota) == cpus


def test_a_container_s_limit_bounds_the_memory(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    everything = usable_memory_bytes(tmp_path / "none")
    for text, usable in (("1048576\n", 1 << 20), ("max\n", everything)):
        limit.write_text(text)
        assert usable_memory_bytes(limit) == usable


def test_the_largest_cache_counts(tmp_path: Path) -> None:
    for i, size in enumerate(("32K", "1024K", "36M")):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(size + "\n")
    assert last_cache_bytes(tmp_path) == 36 << 20
    assert last_cache_bytes(tmp_path / "none") == 32 << 20


def test_arrays_outgrow_the_cache_where_memory_allows() -> None:
    needs_torch()
    from perfdoc.peak.rank import array_bytes

    mib, gib = 1 << 20, 1 << 30
    assert array_bytes(cache_bytes=32 * mib, memory_bytes=64 * gib, ranks=1) == 128 * mib
    # An eighth of 12 GiB, over three arrays of two ranks.
    assert array_bytes(cache_bytes=256 * mib, memory_bytes=12 * gib, ranks=2) == 256 * mib
    assert array_bytes(cache_bytes=256 * mib, memory_bytes=6 * gib, ranks=2) == 128 * mib
    # 3 GiB at most.
    assert array_bytes(cache_bytes=900 * mib, memory_bytes=999 * gib, ranks=2) == 512 * mib
    assert array_bytes(cache_bytes=32 * mib, memory_bytes=mib, ranks=9) == 16 * mib


def test_a_rate_is_the_best_round_and_the_spread_is_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 40, 20 and 60 ms by a clock that only work moves: best 50 a second, median 25. Of the best
    round's 20 ms on two cores 10 are CPU time: a quarter."""
    needs_torch()
    from perfdoc.peak import team

    now = {"wall": 0.0, "cpu": 0.0}
    takes = iter([0.02, 0.02, 0.04, 0.02, 0.06])  # warm-up, the look, three rounds

    def work() -> None:
        now["wall"] += next(takes)
        now["cpu"] += 0.01

    clock = SimpleNamespace(perf_counter=lambda: now["wall"], process_time=lambda: now["cpu"])
    monkeypatch.setattr(team, "time", clock)
    monkeypatch.setattr(team.Team, "_cores", lambda _: 2)
    timed = team.Team(rank=0, ranks=1, kind="cpu").timed(work, 1.0, round_s=0.0, rounds=3, together=True)
    assert timed.rate == pytest.approx(50)
    assert timed.spread_frac == pytest.approx(0.5)
    assert timed.cpu_frac == pytest.approx(0.25)


def test_a_rank_that_cannot_is_a_reason_and_no_failure() -> None:
    needs_torch()
    from perfdoc.peak.team import Team

    def broken() -> None:
        raise RuntimeError("not implemented for 'Half'\nand more")

    assert Team(rank=0, ranks=1, kind="cpu").can(broken) == "not implemented for 'Half'"


def test_ranks_that_end_or_hang_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank fails: the other, which would wait for it, is ended."""

    def command(setting: Setting, rank: int, folder: Path) -> Sequence[str]:
        last = "import time; time.sleep(60)" if rank else "raise SystemExit('no such device')"
        return [sys.executable, "-c", last]

    monkeypatch.setattr(measuring, "_command", command)
    begin = time.monotonic()
    with pytest.raises(UserError, match="no such device"):
        measure(Setting(kind="cpu", ranks=2))
    assert time.monotonic() - begin < 30
    monkeypatch.setattr(measuring, "LIMIT_S", 0.2)
    monkeypatch.setattr(
        measuring, "_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    with pytest.raises(UserError, match="within"):
        measure(Setting(kind="cpu", ranks=1))


def test_the_table_says_what_was_reached_beside_the_data_sheet() -> None:
    """791 of 989 TFLOP/s are 80 %."""
    found = MeasuredCeilings(
        device="NVIDIA H100 80GB HBM3",
        kind="cuda",
        ranks=8,
        threads=None,
        flops={
            "bf16": Rate(best=791.2e12, spread_frac=0.02, repeats=12, what="GEMM of 8,192 x 8,192 x 8,192")
        },
        memory={"copy": Rate(best=2.68e12, spread_frac=0.0, repeats=12, what="copy of 1.0 GiB")},
        collectives={"all_reduce": Rate(best=4e11, spread_frac=0.0, repeats=12, what="all-reduce")},
        missing={"fp8": "not supported"},
        busy=("device 3 was at work 40 % of the time before",),
        versions={"torch": "2.13.0"},
        measured_utc="2026-11-23T09:00:00Z",
    )
    text = format_table(found, stored=None, now=True)
    (line,) = [each for each in text.splitlines() if each.startswith("bf16")]
    assert line.split("  ")[0] == "bf16"
    for word in ("791.2 TFLOP/s", "989.0 TFLOP/s", "80.0 %", "2.0 %", "12: GEMM of 8,192"):
        assert word in line
    assert "2,680.0 GB/s" in text
    assert "3,350.0 GB/s" in text
    assert "not measured: fp8: not supported" in text
    assert "busy: device 3" in text


@pytest.mark.slow
def test_two_ranks_on_this_cpu(tmp_path: Path) -> None:
    """Figures of a real measurement: all there, and a GEMM outruns reading its operands from memory."""
    needs_torch()
    env = {"PERFDOC_STATE": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    first = perfdoc("peak", "--ranks", "2", "--json", cwd=tmp_path, env=env)
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert (found["kind"], found["ranks"], found["threads"]) == ("cpu", 2, 1)
    assert {"fp32", "fp64"} <= found["flops"].keys()
    assert found["memory"].keys() == {"copy", "triad"}
    assert found["collectives"].keys() == {"all_reduce", "all_gather", "all_to_all"}
    rates = {**found["flops"], **found["memory"], **found["collectives"]}
    assert all(r["best"] > 0 and 0 <= r["spread_frac"] <= 1 for r in rates.values())
    assert 1e9 < found["flops"]["fp64"]["best"] < found["flops"]["fp32"]["best"] < 1e13
    assert 1e8 < found["memory"]["copy"]["best"] < 1e12
    again = perfdoc("peak", "--ranks", "2", cwd=tmp_path, env=env)
    assert "again with --again" in again.stdout
    assert len(list(tmp_path.glob("peak/*.json"))) == 1


def test_a_driver_that_does_not_say_how_busy_a_gpu_is_costs_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs_torch()
    import torch

    from perfdoc.peak import rank, team

    class NVMLErrorNotSupported(Exception):
        """pynvml's errors have no base but Exception."""

    def utilization(device: int) -> int:
        raise NVMLErrorNotSupported("Not Supported")

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    one = team.Team(rank=0, ranks=1, kind="cuda")
    assert rank._busy_gpus(one) == []
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 40)
    assert rank._busy_gpus(one) == ["device 0 was at work 40 % of the time before"]
