"""PD201's settings and small kernels, PD206: what relieves the host, uneven hosts."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.results.host import SlowestRank
from perfdoc.results.waits import RankWait
from perfdoc.rules.checks import pd206_host_jitter
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts import graphs
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import TimelineBuilder
from tests.rules.cases import (
    US,
    case_of,
    evidence_of,
    gain_of,
    predicting,
    result,
    settings_of,
    step_with_gap,
    two_steps,
)
from tests.rules.laid import DENSE, GIB, device_memory, given, laid, remembering

DROPLESS: dict[str, Value] = {**DENSE, "num_moe_experts": 8, "moe_expert_capacity_factor": None, "fp8": None}


@pytest.fixture(scope="module")
def starved(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The host holds an H100 up for 100 of each 1,000 us."""
    return case_of(tmp_path_factory.mktemp("x"), step_with_gap(100))


def test_graphs_of_what_experts_leave(starved: Case) -> None:
    case = predicting(given(starved, "megatron_bridge", **DROPLESS), without_launches=(0.05, 0.09, 0.1))
    found = result("PD201", case)
    assert settings_of(found) == {
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ("attn", "moe_router", "moe_preprocess"),
    }
    # Predicted for whole layers: no more than that.
    assert (gain_of(found).method, gain_of(found).mid_ms, gain_of(found).high_ms) == ("ceiling", None, 0.1)
    for change in ({"moe_expert_capacity_factor": 1.0}, {"fp8": "hybrid"}):
        partly = settings_of(result("PD201", given(starved, "megatron_bridge", **{**DROPLESS, **change})))
        assert partly["cuda_graph_scope"] == ("attn", "moe_router")


def test_graphs_bring_their_random_state(starved: Case) -> None:
    for dialect in ("megatron_bridge", "megatron_lm"):
        found = result("PD201", given(starved, dialect, **{**DENSE, "use_te_rng_tracker": False}))
        assert settings_of(found) == {"cuda_graph_impl": "local", "use_te_rng_tracker": True}


def test_no_graphs_of_batches_that_change_shape(starved: Case) -> None:
    assert result("PD201", given(starved, "verl", **DENSE)).advice == []
    for pack, advised in ((-1, {}), (4096, {"cuda_graph_impl": "local"})):
        case = given(starved, **DENSE, sequence_packing_size=pack)
        assert settings_of(result("PD201", case)) == advised


def test_graphs_that_hold_dropless_experts(starved: Case) -> None:
    settings: dict[str, Value] = {**DROPLESS, "cuda_graph_impl": "transformer_engine"}
    for whole in (None, (), ("full",)):
        found = result("PD207", given(starved, "megatron_bridge", **settings, cuda_graph_scope=whole))
        assert (found.state, found.level) == ("fires", "information")
        assert settings_of(found) == {"cuda_graph_scope": ("attn", "moe_router", "moe_preprocess")}
    step: dict[str, Value] = {"cuda_graph_impl": "local", "cuda_graph_scope": ("full_iteration",)}
    assert settings_of(result("PD207", given(starved, "megatron_bridge", **{**settings, **step}))) == {
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ("attn", "moe_router", "moe_preprocess"),
    }
    part: dict[str, Value] = {**settings, "cuda_graph_scope": ("attn",)}
    assert result("PD207", given(starved, "megatron_bridge", **part)).state == "passes"
    for change, state in (
        ({"num_moe_experts": None}, "not_applicable"),
        ({"cuda_graph_impl": "none"}, "not_applicable"),
        ({"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}, "not_applicable"),
    ):
        assert result("PD207", given(starved, "megatron_bridge", **{**part, **change})).state == state
    for unknown in ("cuda_graph_impl", "cuda_graph_scope", "num_moe_experts"):
        known = {k: v for k, v in part.items() if k != unknown}
        # That no graph launches anything is in the capture.
        state = "not_applicable" if unknown == "cuda_graph_impl" else "skipped"
        assert result("PD207", given(starved, "megatron_bridge", **known)).state == state


@pytest.mark.parametrize("pp", [1, 2])
def test_no_graphs_where_memory_is_short(tmp_path: Path, starved: Case, pp: int) -> None:
    need = graphs.GRAPH_BYTES if pp == 1 else graphs.GRAPH_BYTES_PIPELINE
    assert need == (4 if pp == 1 else 10) * GIB
    case = given(starved, **DENSE, pipeline_model_parallel_size=pp)
    # A tenth of 80 GiB is left alone.
    edge_gib = 80 - 8 - need / GIB
    fits = remembering(case, device_memory(tmp_path, reserved_gib=edge_gib))
    assert settings_of(result("PD201", fits)) == {"cuda_graph_impl": "local"}
    short = result("PD201", remembering(case, device_memory(tmp_path, reserved_gib=edge_gib + 0.01)))
    assert (short.state, short.advice, "CUDA graphs need" in short.remedy) == ("fires", [], True)


def test_a_larger_micro_batch_where_memory_takes_it(tmp_path: Path, starved: Case) -> None:
    case = given(
        starved,
        micro_batch_size=2,
        global_batch_size=16,
        data_parallel_size=2,
        pipeline_model_parallel_size=1,
        tensor_model_parallel_size=4,
    )
    # 20 GiB are free, 8 of them stay so.
    for above_gib, advised in ((12, {"micro_batch_size": 4}), (12.01, {})):
        memory = device_memory(tmp_path, peak_above_start_bytes=round(above_gib * GIB))
        found = result("PD201", remembering(case, memory))
        assert settings_of(found) == advised
        assert ("does not fit" in found.remedy) is not bool(advised)
        assert "FSDP" in found.remedy
        # Less of it needs more memory too.
        assert ("less tensor parallelism" in found.remedy) is bool(advised)
    assert result("PD201", case).advice == []  # nobody knows what memory takes
    assert "FSDP" not in result("PD201", given(starved, use_megatron_fsdp=True)).remedy


def small(kernel_us: int, call_us: int, idle_us: int, count: int = 10) -> TimelineBuilder:
    """Steps of 1 ms that begin with short kernels, each idled for: its launch is a call of so many us that
    ends as it starts."""
    builder, thread, device, steps = two_steps()
    for at, end in steps:
        device.kernel(GEMM, at, at + 100 * US, launch=(thread, at, at + 1))
        now = at + 100 * US
        for _ in range(count):
            start = now + idle_us * US
            device.kernel(
                "small", start, start + kernel_us * US, launch=(thread, start - call_us * US, start)
            )
            now = start + kernel_us * US
        device.kernel(GEMM, now, end, launch=(thread, now - 2, now - 1))
    return builder


def test_kernels_shorter_than_their_launches(tmp_path: Path) -> None:
    # 10 kernels of 2 us behind 5 us of idle time each, launched by calls of 4 us: 50 of 1,000 us.
    found = result("PD201", case_of(tmp_path, small(2, 4, 5)))
    assert (found.state, found.level) == ("fires", "problem")
    assert evidence_of(found)[:3] == ["5.0 %", "50 µs", "5.0 %"]
    assert "small, 20 times" in evidence_of(found)
    assert "fuse operators (PD404)" in found.remedy
    # As long as their launches: the host is late, but not because they are small.
    long = result("PD201", case_of(tmp_path, small(5, 4, 5)))
    assert (long.state, evidence_of(long)[2], "PD404" in long.remedy) == ("fires", "0.0 %", False)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Two ranks of six steps."""
    return case_of(tmp_path_factory.mktemp("x"), *(laid((GEMM, 400), gap_us=100, steps=6) for _ in range(2)))


def jittery(case: Case, *, spread_ns: int, noise_spread_ns: int | None = 0) -> Case:
    """Host time of 1,000,000 ns a step, so much of it apart."""
    jitter = replace(
        case.job.host_jitter,
        median_host_ns=1_000_000,
        median_spread_ns=spread_ns,
        noise_spread_ns=noise_spread_ns,
        slowest=(),
    )
    return replace(case, job=replace(case.job, host_jitter=jitter))


def always_slow(case: Case, *, spread_ns: int, label: str) -> Case:
    """The same, and one rank the slow one in each step."""
    case = jittery(case, spread_ns=spread_ns)
    slow = SlowestRank(label=label, steps=6, recurrence_frac=1.0, median_lag_ns=spread_ns, beyond_chance=True)
    return replace(case, job=replace(case.job, host_jitter=replace(case.job.host_jitter, slowest=(slow,))))


def test_a_host_that_is_slow_again_and_again(hosts: Case) -> None:
    assert hosts.job.host_jitter.state == "measured"
    assert result("PD206", hosts).state == "passes"
    edge, label = round(pd206_host_jitter.MIN_FRAC * 1_000_000), hosts.job.labels[1]
    found = result("PD206", always_slow(hosts, spread_ns=edge, label=label))
    assert (found.state, found.level, evidence_of(found)[0]) == ("fires", "problem", "5.0 %")
    assert f"the machine of {label}" in found.remedy
    assert "numactl --cpunodebind=$((SLURM_LOCALID/4))" in found.remedy
    assert result("PD206", always_slow(hosts, spread_ns=edge - 1, label=label)).state == "passes"


def test_graphs_take_the_hosts_work_away(hosts: Case) -> None:
    case = jittery(hosts, spread_ns=50_000)
    assert settings_of(result("PD206", given(case, **DENSE))) == {"cuda_graph_impl": "local"}
    assert result("PD206", given(case, **{**DENSE, "cuda_graph_impl": "local"})).advice == []
    assert result("PD206", given(case, "verl", **DENSE)).advice == []


def test_the_slow_host_s_own_device_counts(tmp_path: Path) -> None:
    # One of 12 devices idles for 10 % behind its host: 0.8 % in the mean.
    gaps = [100] + [0] * 11
    case = case_of(tmp_path, *(laid((GEMM, 400), gap_us=gap, steps=6) for gap in gaps))
    assert 0 < (case.share(lambda r: r.ledger.idle.host) or 0) < pd206_host_jitter.MIN_IDLE_FRAC
    slow, other = case.job.labels[0], case.job.labels[1]
    assert result("PD206", always_slow(case, spread_ns=100_000, label=slow)).state == "fires"
    assert result("PD206", always_slow(case, spread_ns=100_000, label=other)).state == "passes"


def waiting(case: Case, frac: float) -> Case:
    """Ranks that wait in collectives for so much of each window."""
    waits = [
        RankWait(
            rank=None,
            name=label,
            dimension="dp",
            collectives=6,
            own_ns=r.ledger.total,
            transfer_ns=r.ledger.total - round(frac * r.ledger.total),
            wait_ns=round(frac * r.ledger.total),
        )
        for label, r in zip(case.job.labels, case.ranks, strict=True)
    ]
    skew = replace(case.job.skew, state="measured", waits=waits)
    return replace(case, job=replace(case.job, skew=skew))


def test_hosts_that_are_slow_by_turns(hosts: Case) -> None:
    # Nobody knows what ranks wait for one another: worth knowing.
    assert hosts.job.skew.state != "measured"
    found = result("PD206", jittery(hosts, spread_ns=50_000))
    assert (found.state, found.level, found.gain) == ("fires", "information", None)
    assert result("PD206", jittery(hosts, spread_ns=50_000, noise_spread_ns=None)).state == "skipped"
    edge = pd206_host_jitter.MIN_WAIT_FRAC
    known = result("PD206", waiting(jittery(hosts, spread_ns=50_000), edge))
    assert (known.state, known.level, evidence_of(known)[-1]) == ("fires", "problem", "2.0 %")
    # Each of them holds its device up for 100 us a step.
    assert (gain_of(known).method, gain_of(known).high_ms) == ("ceiling", pytest.approx(0.1, rel=0.01))
    less = result("PD206", waiting(jittery(hosts, spread_ns=50_000), edge - 0.001))
    assert (less.state, "wait little" in less.reason) == ("passes", True)
    # Where one host is the slow one, that is enough.
    label = hosts.job.labels[0]
    assert result("PD206", waiting(always_slow(hosts, spread_ns=50_000, label=label), 0)).state == "fires"


def test_hosts_that_collect_by_turns_are_pd202_s(tmp_path: Path) -> None:
    """A gap of 10 % behind collections, none behind the host."""
    builders = [step_with_gap(100, "perfdoc.gc") for _ in range(2)]
    case = jittery(case_of(tmp_path, *builders), spread_ns=50_000)
    assert result("PD202", case).state == "fires"
    found = result("PD206", case)
    assert (found.state, "PD202" in found.reason) == ("passes", True)


def test_hosts_that_no_device_waits_for(tmp_path: Path) -> None:
    full = case_of(tmp_path, *(laid((GEMM, 400), steps=6) for _ in range(2)))
    found = result("PD206", jittery(full, spread_ns=100_000))
    assert (found.state, "no device is launch-bound" in found.reason) == ("passes", True)
    assert result("PD206", case_of(tmp_path, laid((GEMM, 400)))).state == "not_applicable"
