"""What speaks against a simulated change in a configuration, and the case that rules are asked about."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.memory.job import RankMemory
from perfdoc.diagnose.whole_case import late_by_compute, whole_case
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.results import DIMENSIONS, IDLE_CAUSES
from perfdoc.results.ranks import ExposedComm, Idle
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.possible import why_left_out, why_not
from perfdoc.rules.engine.registry import own_rules
from perfdoc.rules.facts.graphs import open_conditions
from perfdoc.simulator.replay.edits.host import without_host_time, without_launches
from perfdoc.simulator.replay.predict import SplitLedger, _cap
from perfdoc.simulator.replay.proposals import CHANGES
from perfdoc.traces import Capability
from tests.analyzers.memory_planted import GIB, a_step, one
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.planted.job import planted_job
from tests.planted.spec import JobSpec, Late
from tests.rules.cases import case_of, result, step_with_gap
from tests.rules.planted_cases import planted_case

GRAPHS = CHANGES["without_launches"].ways
OVERLAPS = CHANGES["overlapped_dp"].ways
PP, VPP = "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"
TWO_CHUNKS = ({VPP: 2}, {VPP: 2, "overlap_p2p_comm": True})
DP, WEIGHTS = "overlap_grad_reduce", "overlap_param_gather"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return case_of(tmp_path_factory.mktemp("plain"), step_with_gap(100))


@pytest.mark.parametrize(
    ("key", "ways", "settings", "words"),
    [
        ("without_launches", GRAPHS, {}, ""),
        ("without_launches", GRAPHS, {"cuda_graph_impl": "none", "use_te_rng_tracker": False}, ""),
        ("without_launches", GRAPHS, {"cuda_graph_impl": "transformer_engine"}, "set already"),
        ("without_launches", GRAPHS, {"recompute_granularity": "full"}, "recomputation"),
        ("without_launches", GRAPHS, {"num_moe_experts": 8, "moe_expert_capacity_factor": None}, "experts"),
        ("without_launches", GRAPHS, {"num_moe_experts": None}, ""),
        ("overlapped_dp", OVERLAPS, {}, ""),
        ("overlapped_dp", OVERLAPS, {DP: True}, ""),
        ("overlapped_dp", OVERLAPS, {DP: True, WEIGHTS: False}, ""),
        ("overlapped_dp", OVERLAPS, {DP: True, WEIGHTS: True}, "set already"),
        ("overlapped_tp", (), {}, "without a setting"),  # tp_comm_overlap is another overlap
        ("overlapped_ep", (), {}, "no halves"),
        ("dp_half_bytes", ({"grad_reduce_in_fp32": False},), {"grad_reduce_in_fp32": False}, "set already"),
        ("fp8_gemm", ({"fp8": "hybrid"},), {"fp8": "e4m3"}, "set already"),
        ("buckets_x4", (), {DP: False}, "no effect"),
        ("buckets_x0.25", (), {PP: 2}, "no effect"),
        ("buckets_x4", (), {DP: True, PP: 1}, ""),
        ("more_virtual_stages", TWO_CHUNKS, {PP: 2, "overlap_p2p_comm": False}, ""),
        ("more_virtual_stages", TWO_CHUNKS, {PP: 1}, "forbids"),
        ("without_gc", (), {"manual_gc": True}, ""),
    ],
)
def test_settings_that_speak_against_a_change(
    plain: Case, key: str, ways: tuple[Mapping[str, Value], ...], settings: dict[str, Value], words: str
) -> None:
    """Unknown settings speak against nothing."""
    known = replace(plain, configuration=Configuration(values=settings, dialect="megatron_lm"))
    reason = why_not(known, key, ways)
    assert words in reason
    assert bool(reason) == bool(words)


def test_what_megatron_has_no_setting_for_others_may_do(plain: Case) -> None:
    captures = [replace(capture, framework="pytorch") for capture in plain.captures]
    other = replace(plain, captures=captures, configuration=Configuration(values={}, dialect="torchtitan"))
    assert [why_not(other, key, ()) for key in ("overlapped_tp", "overlapped_ep")] == ["", ""]


def test_gradients_of_wide_weights_cannot_be_halved(plain: Case) -> None:
    way = ({"grad_reduce_in_fp32": False},)
    for dtype, possible in (("fp32", False), ("bf16", True), (None, True)):
        facts = replace(plain.job.facts, dtype=dtype)
        case = replace(plain, job=replace(plain.job, facts=facts))
        assert (why_not(case, "dp_half_bytes", way) == "") == possible


def test_rules_see_the_headroom_of_snapshots(tmp_path: Path) -> None:
    """Stage 0 has reserved 23.5 of its GPU's 24 GiB, stage 1 10 of them, as captures and snapshots say
    together: PD306 fires, which no snapshot alone could tell."""
    job = planted_job(JobSpec(pp=2, micro_batches=2, steps=2))
    captures = [
        measure_capture(write_nsys_sqlite(t, tmp_path / f"rank{i}.sqlite"), WindowRequest())
        for i, t in enumerate(job.timelines)
    ]
    sized = [
        replace(c, ranks=[replace(r, device=replace(r.device, memory_bytes=24 * GIB)) for r in c.ranks])
        for c in captures
    ]
    device = one(a_step(), tmp_path, device_total_bytes=None)
    remembered = [
        RankMemory(
            devices=[replace(device, rank=rank, headroom_bytes=None, peak_reserved_bytes=peak, oom_events=0)],
            process=None,
            sha256={},
        )
        for rank, peak in ((0, 47 * GIB // 2), (1, 10 * GIB))
    ]
    case = whole_case(sized, remembered, Configuration()).case
    assert case.memory is not None
    assert [d.headroom_bytes for d in case.memory.devices] == [GIB // 2, 14 * GIB]
    assert result("PD306", case).state == "fires"


def test_only_who_computes_longer_is_promised_to_compute_as_fast() -> None:
    case = planted_case(JobSpec(dp=4, micro_batches=2, late=Late(rank=2, extra_ns=1_000_000)))
    (late, *_) = case.job.skew.stragglers
    for cause, named in (("compute", [(late.name, "dp")]), ("other", []), ("waiting", [])):
        skew = replace(case.job.skew, stragglers=[replace(late, cause=cause)])  # type: ignore[arg-type]
        assert late_by_compute(replace(case.job, skew=skew)) == named


def test_no_gain_is_advised_of_what_its_rule_could_not_judge(plain: Case) -> None:
    """PD305 is skipped where no pipeline is known, PD201 where no call is seen."""
    assert why_left_out(plain, "without_launches", GRAPHS) == ""
    assert "PD305 is skipped" in why_left_out(plain, "balanced_layers", ())
    unseen = {"launch_correlation": Capability(available=False, reason="no")}
    blind = [replace(c, capabilities={**c.capabilities, **unseen}) for c in plain.captures]
    assert "PD201 is skipped: no" in why_left_out(replace(plain, captures=blind), "without_launches", GRAPHS)


@pytest.mark.parametrize(("graph_ns", "done"), [(60, True), (50, False)])
def test_graphs_that_launch_most_of_the_work_are_no_advice(plain: Case, graph_ns: int, done: bool) -> None:
    (capture,) = plain.captures
    (rank,) = capture.ranks
    graphs = replace(rank.host.graphs, state="measured", graph_ns=graph_ns, kernel_ns=100, graph_kernels=3)
    used = replace(capture, ranks=[replace(rank, host=replace(rank.host, graphs=graphs))])
    case = replace(plain, captures=[used])
    assert ("done already" in why_left_out(case, "without_launches", GRAPHS)) == done


def test_every_change_has_the_rule_that_judges_it() -> None:
    assert {change.rule for change in CHANGES.values()} <= {rule.meta.code for rule in own_rules()}


def test_what_graphs_take_and_is_not_known(tmp_path: Path, plain: Case) -> None:
    """No graph launches anything in the capture: it is not done already. Settings tell static shapes."""
    assert open_conditions(plain, "without_launches") == ["shapes are static"]
    assert open_conditions(plain, "without_data") == []
    known = {"cuda_graph_impl": "none", "num_moe_experts": None, "recompute_granularity": None}
    configured = replace(plain, configuration=Configuration(values=known, dialect="megatron_lm"))
    assert open_conditions(configured, "without_launches") == []
    slowed = replace(configured, captures=[replace(c, slowed_by=["stacks"]) for c in plain.captures])
    assert len(open_conditions(slowed, "without_launches")) == 1
    assert open_conditions(slowed, "fused_optimizer") == open_conditions(slowed, "without_launches")
    assert open_conditions(plain, "fused_optimizer") == []


def test_a_prediction_of_launches_stops_at_what_launching_causes() -> None:
    """Of 1 ms idle.host the host waited 0.5 ms and paused 0.1: graphs take 0.4 ms and the launch latency, and
    at most the rest too, which a host that is ahead of its device hides; data loading, of which the host's
    time may be, all of it."""
    leaves = dict.fromkeys(IDLE_CAUSES, 0) | {"host": 1_000_000, "launch_latency": 50_000}
    found = SplitLedger(
        compute=0,
        exposed_comm=ExposedComm(**dict.fromkeys(DIMENSIONS, 0)),
        exposed_memcpy=0,
        idle=Idle(**leaves),
        host_elsewhere_ns=500_000,
        host_pausing_ns=100_000,
    )
    graphs = without_launches()
    assert _cap({*graphs.leaves}, [found]) == 450_000
    assert _cap({*graphs.leaves, *graphs.beside}, [found]) == 1_050_000
    assert _cap({*without_host_time("data").leaves}, [found]) == 1_000_000


@pytest.mark.parametrize(("stages", "words"), [(2, "no effect"), (1, ""), (None, "")])
def test_a_pipeline_that_only_the_capture_shows_speaks_against_buckets(
    plain: Case, stages: int | None, words: str
) -> None:
    shown = replace(plain, job=replace(plain.job, pipeline=replace(plain.job.pipeline, pp=stages)))
    unset = replace(shown, configuration=Configuration(values={}, dialect="megatron_lm"))
    for key in ("buckets_x4", "buckets_x0.25"):
        reason = why_not(unset, key, ())
        assert words in reason
        assert bool(reason) == bool(words)
