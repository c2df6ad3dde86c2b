"""PD301, PD303 and PD501: the pipeline, a late rank, memory."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.results.figures import brief
from perfdoc.results.losses import largest_loss
from perfdoc.results.memory import MemoryAnalysis
from perfdoc.results.replay import Gain
from perfdoc.results.rules import RuleResult
from perfdoc.results.what_if import CauseKind, WhatIfCause, no_what_if
from perfdoc.rules.engine.advise import value_of
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.registry import judge, own_rules
from perfdoc.rules.engine.rule import Meta, Rule, Verdict
from perfdoc.rules.facts.culprit_words import why_blamed
from perfdoc.rules.facts.late_work import late_words
from perfdoc.simulator.replay.proposals import change_title
from tests.analyzers.memory_planted import MIB, a_step, one
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.planted.job import planted_job
from tests.planted.spec import JobSpec, Late
from tests.rules.cases import (
    case_of,
    gain_of,
    predicting,
    result,
    settings_of,
    step_with_gap,
    with_predictions,
)

PIPELINE: dict[str, Value] = {
    "num_layers": 8,
    "pipeline_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": None,
    "tensor_model_parallel_size": 1,
}

LAST_IN = "rank 2 arrives last in 100 % of 15 DP collectives (25 % would be chance)"


def planted(folder: Path, spec: JobSpec, settings: dict[str, Value] | None = None) -> Case:
    captures = [
        measure_capture(write_nsys_sqlite(t, folder / f"rank{i}.sqlite", force=True), WindowRequest())
        for i, t in enumerate(planted_job(spec).timelines)
    ]
    configuration = Configuration(values=settings or {}, dialect="perfdoc")
    return replace(Case.of(captures), configuration=configuration)


def test_pd301_bubble(tmp_path: Path) -> None:
    # Two stages, one micro-batch: each stage waits for the other for half of the work.
    fires = result("PD301", planted(tmp_path, JobSpec(pp=2, micro_batches=1)))
    assert fires.state == "fires", fires.reason
    assert fires.advice == []  # nobody predicted that more chunks gain
    # 64 micro-batches: 1/65 of the time.
    assert result("PD301", planted(tmp_path, JobSpec(pp=2, micro_batches=64, steps=2))).state == "passes"
    single = case_of(tmp_path, step_with_gap(1), settings={"pipeline_model_parallel_size": 1})
    assert result("PD301", single).state == "not_applicable"
    assert result("PD301", case_of(tmp_path, step_with_gap(1))).state == "skipped"


@pytest.mark.parametrize(("layers", "to"), [(8, 2), (6, None)])
def test_pd301_chunks_only_where_layers_divide(tmp_path: Path, layers: int, to: int | None) -> None:
    settings = {**PIPELINE, "num_layers": layers}
    case = planted(tmp_path, JobSpec(pp=2, micro_batches=2), settings)
    found = result("PD301", predicting(case, more_virtual_stages=(0.1, 0.2, 0.3)))
    advised = {} if to is None else {"virtual_pipeline_model_parallel_size": to}
    assert settings_of(found) == advised
    # What was replayed is no gain where it cannot be had.
    assert (found.gain and found.gain.mid_ms) == (0.2 if to else None)


def test_pd301_doubles_what_is_set(tmp_path: Path) -> None:
    """Four chunks are set; the replay tried 2 for want of knowing: no gain of 2 or 8 chunks is known."""
    settings = {**PIPELINE, "num_layers": 16, "virtual_pipeline_model_parallel_size": 4}
    case = planted(tmp_path, JobSpec(pp=2, micro_batches=2), settings)
    predicted = predicting(case, more_virtual_stages=(0.1, 0.2, 0.3))
    found = result("PD301", predicted)
    assert (found.state, found.advice, found.gain and found.gain.method) == ("fires", [], "ceiling")
    facts = replace(case.job.facts, vpp=4)
    found = result("PD301", replace(predicted, job=replace(case.job, facts=facts)))
    assert [(a.from_value, value_of(a)) for a in found.advice if not a.if_unset] == [("4", 8)]
    assert "8 chunks per stage instead of 4: the pipeline fills 2 times as fast" in found.advice[0].why


def test_pd303_names_the_late_rank(tmp_path: Path) -> None:
    late = JobSpec(dp=4, micro_batches=2, late=Late(rank=2, extra_ns=1_000_000))
    case = planted(tmp_path, late)
    for rank, method, mid in ((2, "replay", 2.0), (1, "ceiling", None)):  # one of the two is this change
        found = result("PD303", _without_rank(case, rank))
        assert (found.state, found.reason) == ("fires", LAST_IN)
        assert (gain_of(found).method, gain_of(found).mid_ms) == (method, mid)
    on_cpus = [replace(c, ranks=[replace(r, on_host=True) for r in c.ranks]) for c in case.captures]
    for where, captures in (("GPU", case.captures), ("CPU", on_cpus)):
        found = result("PD303", _without_rank(replace(case, captures=captures), 2))
        assert (f"the {where} of" in found.action, f"slow {where}" in found.remedy) == (True, True)
        assert ("pidstat" in found.remedy) == (where == "CPU")
    # Late for another cause, which computing as fast as the others does not take away.
    (straggler, *_) = case.job.skew.stragglers
    skew = replace(case.job.skew, stragglers=[replace(straggler, cause="other")])
    found = result("PD303", _without_rank(replace(case, job=replace(case.job, skew=skew)), 2))
    assert (found.state, found.level, found.gain and gain_of(found).method) == (
        "fires",
        "information",
        "ceiling",
    )
    # Delays of collectives that overlap are summed: no rank waits longer than its communication is exposed.
    summed = replace(straggler, cause="other", delay_ns=100 * straggler.delay_ns)
    much = replace(case, job=replace(case.job, skew=replace(case.job.skew, stragglers=[summed])))
    bound = result("PD303", much).gain
    assert bound is not None
    assert bound.high_ms is not None
    waits = {w.rank: w.wait_ns / case.ranks[0].window.steps / 1e6 for w in case.job.skew.waits}
    assert 2.0 < min(ms for rank, ms in waits.items() if rank != 2) <= bound.high_ms < 2.5
    # In one stretch alone, or for next to nothing: an equal run may show another rank, or none.
    skew = replace(case.job.skew, stragglers=[replace(straggler, borne_out=False)])
    found = result("PD303", _without_rank(replace(case, job=replace(case.job, skew=skew)), 2))
    assert (found.state, found.level, "one stretch" in found.reason) == ("fires", "information", True)
    whole = predicting(case, without_straggler_dp=(1.0, 2.0, 3.0)).gains.predictions[0].step_ns or 0
    # Late in every collective, by the same: a per cent of the step is enough. Not near the limit of chance.
    for probability, frac, level in (
        (1e-6, 0.0104, "problem"),
        (1e-6, 0.0099, "information"),
        (5e-3, 0.0104, "information"),
        (5e-3, 0.0204, "problem"),
    ):
        skew = replace(case.job.skew, stragglers=[replace(straggler, chance_probability=probability)])
        late_by = replace(case, job=replace(case.job, skew=skew))
        found = result("PD303", _without_rank(late_by, 2, whole * frac / 1e6))
        assert (found.state, found.level) == ("fires", level), (probability, frac)
    assert result("PD303", _without_rank(case, 2, whole * 0.0049 / 1e6)).state == "passes"
    # Even ranks of one clock: nobody comes last, to collectives of which too few are told apart.
    even = result("PD303", planted(tmp_path, JobSpec(dp=4, micro_batches=2)))
    assert (even.state, even.evidence) == ("skipped", [])
    assert result("PD303", case_of(tmp_path, step_with_gap(1))).state == "not_applicable"


@pytest.mark.parametrize(
    ("kind", "rank", "named"), [("slow_rank", 2, True), ("slow_rank", 1, False), ("long_stage", 2, False)]
)
def test_pd303_leads_where_the_replay_of_operations_names_the_same_rank(
    tmp_path: Path, kind: CauseKind, rank: int, *, named: bool
) -> None:
    """Two replays find rank 2, and that of every kernel predicts more. The verdict names it, and says nothing
    of the other replay's figures."""
    case = planted(tmp_path, JobSpec(dp=4, micro_batches=2, late=Late(rank=2, extra_ns=1_000_000)))
    step_ns, saved_ns = 1_000_000, 250_000
    cause = WhatIfCause(
        kind=kind,
        ranks=[rank],
        stage=None,
        ratio=1.3,
        peers=3,
        step_ns=step_ns - saved_ns,
        saved_ns=saved_ns,
        low_ns=saved_ns,
        high_ns=saved_ns,
        even_ns=None,
        recurrence_frac=1.0,
        correlation=None,
        note="",
    )
    what_if = replace(
        no_what_if(""), state="measured", steps=2, measured_ns=step_ns, step_ns=step_ns, causes=[cause]
    )
    found = result("PD303", _without_rank(replace(case, what_if=what_if), 2, 1.5 * saved_ns / 1e6))
    assert found.reason == LAST_IN
    assert found.blames.startswith("Rank 2 computes") == bool(found.blames) == named
    assert why_blamed(what_if, None) == ""
    # The replay's step is no capture's: beside it stands what was measured, where that reads otherwise.
    assert why_blamed(what_if, cause).startswith(f"Simulated: {brief(step_ns)} as measured, ")
    longer = replace(what_if, measured_ns=2 * step_ns)
    assert f"Simulated: {brief(step_ns)} ({brief(2 * step_ns)} measured), " in why_blamed(longer, cause)
    # Where uneven data may do as much in the steps that were captured, the other replay is all that is known.
    late = [replace(s, compute_is_sure=False) for s in case.job.skew.stragglers]
    doubted = replace(
        case, what_if=what_if, job=replace(case.job, skew=replace(case.job.skew, stragglers=late))
    )
    assert result("PD303", _without_rank(doubted, 2, 1.5 * saved_ns / 1e6)).reason != LAST_IN
    # Another change that saves less says nothing of what this one does, as its title names no rank.
    other = predicting(doubted, fused_optimizer=(0.01, 0.01, 0.01)).gains.analysis.predictions
    priced = with_predictions(doubted, [replace(p, change=change_title(p.key)) for p in other])
    if kind == "slow_rank":
        gain = result("PD303", priced).gain
        assert gain is not None
        assert gain.mid_ms == saved_ns / 1e6


def test_pd303_of_a_link_says_to_check_it(tmp_path: Path) -> None:
    """250 us of a step of 1 ms; sizes keep their unit."""
    case = planted(tmp_path, JobSpec(dp=4, micro_batches=2))
    cause = WhatIfCause(
        kind="slow_link",
        ranks=[1, 3],
        ratio=6.0,
        peers=1,
        step_ns=750_000,
        saved_ns=250_000,
        low_ns=250_000,
        high_ns=250_000,
        note="6 ms for 128.0 MiB, theirs 1 ms",
        kinds_of_wait=["DP reduce-scatter"],
    )
    of = {"steps": 2, "measured_ns": 1_000_000, "step_ns": 1_000_000}
    what_if = replace(no_what_if(""), state="measured", causes=[cause], **of)
    found = result("PD303", replace(case, what_if=what_if))
    assert found.action == "Check the links of ranks 1 and 3"
    assert "128.0 MiB, theirs 1 ms." in found.remedy


def _without_rank(case: Case, rank: int, saved_ms: float = 2.0) -> Case:
    """The replay tried the lateness of this one."""
    case = predicting(case, without_straggler_dp=(saved_ms / 2, saved_ms, saved_ms * 1.5))
    tried = [
        replace(p, change=change_title("without_straggler_dp", f"rank {rank}"))
        for p in case.gains.predictions
    ]
    return with_predictions(case, tried)


def test_pd303_leaves_out_who_is_late_by_schedule_or_through_others(tmp_path: Path) -> None:
    """The first stage of a pipeline ends last, so it joins the embedding group last."""
    case = planted(tmp_path, JobSpec(dp=4, micro_batches=2, late=Late(rank=2, extra_ns=1_000_000)))
    (late, *_) = case.job.skew.stragglers

    def having(pp: int | None, **changes: object) -> RuleResult:
        skew = replace(case.job.skew, stragglers=[replace(late, **changes)])  # type: ignore[arg-type]
        facts, pipeline = replace(case.job.facts, pp=pp), replace(case.job.pipeline, pp=None)
        job = replace(case.job, skew=skew, facts=facts, pipeline=pipeline)
        return result("PD303", replace(case, job=job))

    assert late.cause != "waiting"
    for pp, dimension, state in (
        (4, "dp", "fires"),
        (4, "other", "passes"),
        (4, "unknown", "passes"),
        (None, "other", "passes"),
        (None, "unknown", "fires"),
        (1, "other", "fires"),
    ):
        found = having(pp, dimension=dimension)
        assert found.state == state, (pp, dimension)
        assert ("schedule" in found.reason) == (state == "passes")
        assert "UNKNOWN" not in found.reason
        assert ("unknown dimension" in found.reason) == (dimension == "unknown")
    through = having(1, cause="waiting")
    assert (through.state, "waited for other ranks itself" in through.reason) == ("passes", True)


@pytest.mark.parametrize(("placed_ns", "likely"), [(600, True), (400, False), (None, False)])
def test_pd303_says_likely_of_waits_for_data_that_only_their_place_shows(
    placed_ns: int | None, likely: bool, tmp_path: Path
) -> None:
    """Of 1000 ns that the rank waits for data, ranges or threads show the others."""
    case = planted(tmp_path, JobSpec(dp=4, micro_batches=2, late=Late(rank=2, extra_ns=1_000_000)))
    (late, *_) = case.job.skew.stragglers
    ranks = [
        replace(
            r,
            ledger=replace(r.ledger, idle=replace(r.ledger.idle, data=1000)),
            host=replace(r.host, data=replace(r.host.data, idle_position_ns=placed_ns)),
        )
        for r in case.ranks
    ]
    changed = replace(case, captures=[replace(case.captures[0], ranks=ranks)])
    assert late_words(changed, replace(late, cause="data")).startswith("likely ") is likely
    assert not late_words(changed, late).startswith("likely ")


def test_pd303_with_too_few_comparable_collectives_abstains(tmp_path: Path) -> None:
    case = planted(tmp_path, JobSpec(dp=4, micro_batches=2))
    few = replace(case.job.skew, stragglers=[], stragglers_state="none", stragglers_reason="too few")
    for usable, state in ((4, "skipped"), (5, "passes")):
        skew = replace(few, compared=700, distinguishable=usable)
        found = result("PD303", replace(case, job=replace(case.job, skew=skew)))
        assert found.state == state
    assert [(e.label.split(",")[0], e.value) for e in found.evidence] == [
        ("collectives with skew above the clock error", "5 of 700")
    ]


def fragmented(
    folder: Path,
    unused_mib: int,
    *,
    free_mib: int | None = 100,
    failures: int = 0,
    settings: dict[str, Value] | None = None,
    expandable: bool = False,
) -> RuleResult:
    """1000 MiB reserved at the peak, so much of it in pieces; so much of the device never reserved."""
    measured = one(a_step(), folder, device_total_bytes=100 * MIB)
    assert measured.layout is not None
    layout = replace(measured.layout, reserved_bytes=1000 * MIB, inactive_split_bytes=unused_mib * MIB)
    device = replace(
        measured,
        rank=0,
        layout=layout,
        peak_reserved_bytes=1000 * MIB,
        headroom_bytes=None if free_mib is None else free_mib * MIB,
        oom_events=failures,
        expandable_segments=expandable,
    )
    memory = MemoryAnalysis(state="measured", reason="", remedy="", devices=[device], processes=[])
    case = replace(case_of(folder, step_with_gap(1), settings=settings), memory=memory)
    if free_mib is None:  # nor does the capture say it
        job = replace(case.job, devices=[replace(d, memory_bytes=None) for d in case.job.devices])
        case = replace(case, job=job)
    return result("PD501", case)


def test_pd501_threshold(tmp_path: Path) -> None:
    assert fragmented(tmp_path, 100).state == "fires"
    assert fragmented(tmp_path, 99).state == "passes"
    assert fragmented(tmp_path, 100, expandable=True).state == "passes"


def test_pd501_asks_whether_memory_is_short(tmp_path: Path) -> None:
    """A ninth of the device over what is reserved is 10 % of the device: 1000 of 1111 MiB."""
    assert fragmented(tmp_path, 500, free_mib=111).state == "fires"
    spare = fragmented(tmp_path, 500, free_mib=112)
    assert (spare.state, "has free memory" in spare.reason) == ("passes", True)
    assert fragmented(tmp_path, 500, free_mib=112, failures=1).state == "fires"
    assert fragmented(tmp_path, 500, free_mib=None).state == "skipped"
    assert fragmented(tmp_path, 500, free_mib=None, failures=1).state == "fires"


@pytest.mark.parametrize(
    ("now", "to"),
    [
        (None, "expandable_segments:True"),
        ("max_split_size_mb:128", "max_split_size_mb:128,expandable_segments:True"),
        (
            "expandable_segments:False, garbage_collection_threshold:0.8",
            "garbage_collection_threshold:0.8,expandable_segments:True",
        ),
    ],
)
def test_pd501_keeps_the_options_that_are_set(tmp_path: Path, now: str | None, to: str) -> None:
    found = fragmented(tmp_path, 100, settings={"pytorch_cuda_alloc_conf": now})
    assert settings_of(found) == {"pytorch_cuda_alloc_conf": to}


def test_pd501_beside_cuda_graphs(tmp_path: Path) -> None:
    """Without NCCL_GRAPH_REGISTER=0 training stops; where graphs are off nothing is said of it."""
    settings: dict[str, Value] = {"pytorch_cuda_alloc_conf": None, "cuda_graph_impl": "local"}
    found = settings_of(fragmented(tmp_path, 100, settings=settings))
    assert found == {"pytorch_cuda_alloc_conf": "expandable_segments:True", "nccl_graph_register": 0}
    off = fragmented(tmp_path, 100, settings={**settings, "cuda_graph_impl": "none"})
    assert settings_of(off) == {"pytorch_cuda_alloc_conf": "expandable_segments:True"}
    ub = fragmented(tmp_path, 100, settings={**settings, "cuda_graph_impl": "none", "nccl_ub": True})
    assert settings_of(ub) == {}


def test_pd501_overwrites_nothing_that_is_not_known(tmp_path: Path) -> None:
    found = fragmented(tmp_path, 100)
    assert (found.advice, "after a comma" in found.remedy) == ([], True)


def test_pd303_leads_however_much_the_transfer_costs(tmp_path: Path) -> None:
    """Rank 2 computes longer in every step, and the reductions themselves take most of it: who is slow is
    named all the same, unless it is next to nothing."""
    job = JobSpec(dp=4, micro_batches=2, dp_factor=40.0, late=Late(rank=2, extra_ns=1_000_000))
    case = planted(tmp_path, job)
    loss, frac = largest_loss([rank.ledger for rank in case.ranks])
    assert loss == "exposed_comm.dp"
    assert frac > 0.2  # a half of it is more than what either gain below is
    whole = predicting(case, without_straggler_dp=(1.0, 2.0, 3.0)).gains.predictions[0].step_ns or 0
    for part, leads in ((0.06, True), (0.04, False)):
        assert bool(result("PD303", _without_rank(case, 2, part * whole / 1e6)).blames) == leads
    # Of a job that waits for its data most of the time the bar shows that.
    stalled = planted(tmp_path, replace(job, dp_factor=1.0, data_ns=20_000_000))
    assert largest_loss([rank.ledger for rank in stalled.ranks])[0] == "idle.data"
    assert not result("PD303", _without_rank(stalled, 2, 0.06 * whole / 1e6)).blames


def test_pd501_without_a_snapshot(tmp_path: Path) -> None:
    assert result("PD501", case_of(tmp_path, step_with_gap(1))).state == "skipped"


def test_the_rank_that_the_verdict_blames_leads_the_list(tmp_path: Path) -> None:
    """Whatever others save: rank 2 is late, and most of the waiting is for it."""
    case = planted(tmp_path, JobSpec(dp=4, micro_batches=2, late=Late(rank=2, extra_ns=1_000_000)))
    latest = case.job.skew.latest
    assert latest is not None
    assert latest.rank == 2
    gain = Gain(low_ms=0.0, mid_ms=None, high_ms=case.unit_ms, method="ceiling", assumptions=[])
    meta = Meta(code="PD999", title="T", why="W.", sources=("s",))
    large = Rule(meta=meta, evaluate=lambda _: Verdict(state="fires", gain=gain))
    rows = judge(case, [*(r for r in own_rules() if r.meta.code == "PD303"), large]).opportunities
    assert [row.codes[0] for row in rows] == ["PD303", "PD999"]
    other = replace(case.job.skew, latest=replace(latest, name="rank 9"))
    elsewhere = replace(case, job=replace(case.job, skew=other))
    assert result("PD303", case).blames
    assert not result("PD303", elsewhere).blames


def test_the_cause_that_the_verdict_names_is_that_of_the_first_row_whatever_its_words(tmp_path: Path) -> None:
    case = planted(tmp_path, JobSpec(dp=2, micro_batches=2))
    causes = [
        WhatIfCause(
            kind=kind,
            ranks=[rank],
            peers=3,
            step_ns=700,
            saved_ns=saved,
            low_ns=saved,
            high_ns=saved,
            ratio=1.3,
        )
        for kind, rank, saved in (("slow_rank", 2, 300), ("late_host", 3, 200))
    ]
    found = replace(no_what_if(""), state="measured", steps=2, measured_ns=1000, step_ns=1000, causes=causes)

    def cause_of_verdict(first: float, second: float, blames: str = "Whoever is late") -> WhatIfCause | None:
        rules = []
        for code, frac, cause in (("PD998", first, causes[0]), ("PD999", second, causes[1])):
            gain = Gain(low_ms=0, mid_ms=None, high_ms=frac * case.unit_ms, method="ceiling", assumptions=[])
            said = Verdict(state="fires", blames=blames, cause=cause, gain=gain)
            meta = Meta(code=code, title="T", why="W.", sources=("s",))
            rules.append(Rule(meta=meta, evaluate=lambda _, said=said: said))  # type: ignore[misc]
        return judge(case, rules).cause

    assert cause_of_verdict(0.3, 0.2) == causes[0]
    assert cause_of_verdict(0.2, 0.3) == causes[1]
    assert cause_of_verdict(0.3, 0.2, blames="") is None
    # 1000 ns less 300 and 200, and the other cause is named.
    for first, other in (causes, causes[::-1]):
        said = why_blamed(found, first)
        assert f"ank {other.ranks[0]} " in said
        assert "0.5 µs without it and this" in said
