"""PD601, PD602, PD904 and PD905: packs, uneven batches, steps captured, no snapshot."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.knobs.knob import Value
from perfdoc.results.waits import LateCause, LateRank
from perfdoc.rules.checks import pd602_uneven_batches, pd904_steps_captured
from perfdoc.rules.engine.case import Case
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import STEP_US, US, case_of, evidence_of, result, settings_of
from tests.rules.laid import device_memory, given, knowing, laid, remembering


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return case_of(tmp_path_factory.mktemp("x"), laid((GEMM, 900)))


def test_packs_in_a_micro_batch(steps: Case) -> None:
    settings: dict[str, Value] = {
        "sequence_packing_size": 4096,
        "micro_batch_size": 4,
        "global_batch_size": 64,
    }
    found = result("PD601", given(steps, **settings))
    assert (found.state, found.level) == ("fires", "problem")
    assert settings_of(found) == {
        "micro_batch_size": 1,
        "sequence_packing_size": 16384,
        "global_batch_size": 16,
    }
    assert found.remedy == ""
    for length, said in ((4096, True), (16384, False)):
        known = result("PD601", given(steps, **settings, seq_length=length))
        assert ("sequence length has to grow" in known.remedy) is said
    odd = result("PD601", given(steps, **{**settings, "global_batch_size": 63}))
    assert settings_of(odd) == {"micro_batch_size": 1, "sequence_packing_size": 16384}
    assert "Divide the global batch by 4" in odd.remedy
    assert result("PD601", given(steps, **{**settings, "micro_batch_size": 1})).state == "passes"
    for off in (0, -1):
        assert (
            result("PD601", given(steps, **{**settings, "sequence_packing_size": off})).state
            == "not_applicable"
        )
    for missing in ("sequence_packing_size", "micro_batch_size"):
        known = {k: v for k, v in settings.items() if k != missing}
        assert result("PD601", given(steps, **known)).state == "skipped"


def test_ranks_that_take_turns(tmp_path: Path) -> None:
    # The median of a rank's steps of 400 and 400 + x us is 400 + x / 2: in each step one rank is x / 2 above
    # its own, the other as much below. x = 43: 21.5 by a mean of 421.5 us are 5.1 %; x = 42: 4.99 %.
    assert pd602_uneven_batches.MIN_FRAC == 0.05
    found = result("PD602", given(uneven(tmp_path, 43), **PADDED))
    assert (found.state, found.level) == ("fires", "problem")
    assert evidence_of(found) == ["5.1 %"]
    assert settings_of(found) == {"sequence_packing_size": 8192, "micro_batch_size": 1}
    assert result("PD602", uneven(tmp_path, 42)).state == "passes"
    unknown = result("PD602", uneven(tmp_path, 100))
    assert (unknown.state, unknown.advice, "Pack samples" in unknown.remedy) == ("fires", [], True)


def batches(
    long_us: int, *, steps: int = 4, late: Sequence[tuple[int, ...]], ranks: int = 2, blocks: int = 132
) -> list[TimelineBuilder]:
    """Ranks that compute 400 us in each step of 1 ms, and in each step some of them so much longer, in so
    many thread blocks, not 132; all reduce to the end of the step."""
    builders = []
    for rank in range(ranks):
        builder, thread, device = one_gpu(pid=1000 + rank, rank=rank)
        for i in range(steps):
            at = i * STEP_US * US
            end = at + STEP_US * US
            busy = at + (400 + (long_us if rank in late[i] else 0)) * US
            thread.range(f"perfdoc.step {i}", at, end)
            grid = (blocks if rank in late[i] else 132, 1, 1)
            device.kernel(GEMM, at, busy, grid=grid, launch=(thread, at, at + 1))
            thread.range("all-grads-sync", at + 2, at + 9)
            device.kernel(ALL_REDUCE, busy, end, stream=20, launch=(thread, at + 3, at + 4))
        builders.append(builder)
    return builders


def uneven(folder: Path, long_us: int, steps: int = 4, late: tuple[int, ...] = (0, 1, 0, 1)) -> Case:
    each = [(rank,) for rank in late]
    return knowing(case_of(folder, *batches(long_us, steps=steps, late=each)), pp=1, world_size=2)


PADDED: dict[str, Value] = {"sequence_packing_size": -1, "micro_batch_size": 4, "seq_length": 8192}


def test_a_rank_that_is_always_slow_has_no_long_batches(tmp_path: Path) -> None:
    assert result("PD602", uneven(tmp_path, 200, late=(1, 1, 1, 1))).state == "passes"


def test_what_even_batches_save_is_bounded_by_what_ranks_wait(tmp_path: Path) -> None:
    """In turn 800 us on one rank and 400 on the other: 600 on both save 200 of the step of 1 ms, as much as
    ranks wait, 400 in every other step. Nobody is blamed where it is the same rank every other step."""
    found = result("PD602", uneven(tmp_path / "turns", 400))
    assert found.gain is not None
    assert (found.gain.method, found.gain.high_ms) == ("ceiling", pytest.approx(0.2, rel=0.02))
    assert found.blames
    one = result("PD602", uneven(tmp_path / "one", 400, late=(1, -1, 1, -1)))
    assert (one.state, one.blames) == ("fires", "")
    some = uneven(tmp_path / "some", 400)
    job = replace(some.job, facts=replace(some.job.facts, world_size=4), world_size=4)
    assert result("PD602", replace(some, job=job)).gain is None  # those at hand may be the long ones


@pytest.mark.parametrize(
    ("cause", "sure", "leads"), [("compute", False, True), ("compute", True, False), ("host", None, False)]
)
def test_uneven_batches_lead_unless_somebody_is_surely_late(
    cause: LateCause, sure: bool | None, leads: bool, tmp_path: Path
) -> None:
    """Most waiting is for a rank of which these steps do not tell whether its data are longer."""
    case = uneven(tmp_path, 400)
    late = LateRank(rank=0, name="rank 0", wait_frac=0.57, cause=cause, compute_is_sure=sure)
    job = replace(case.job, skew=replace(case.job.skew, latest=late))
    assert bool(result("PD602", replace(case, job=job)).blames) == leads


def test_ranks_that_are_long_together_take_turns(tmp_path: Path) -> None:
    """Two of four are 400 us longer in each step, each in two of the four: nobody has more above the mean."""
    pairs = [(0, 1), (2, 3), (0, 2), (1, 3)]
    case = case_of(tmp_path, *batches(400, late=pairs, ranks=4))
    assert result("PD602", knowing(case, pp=1, world_size=4)).blames


def test_ranks_that_end_together_may_be_some_of_the_job(tmp_path: Path) -> None:
    """Two ranks, 400 us longer in turn: of more ranks, which no capture counts, the others may be longer
    still. Only a number of ranks that something says, not how many are at hand, gives a bound. That the two
    wait for each other for 200 us of a step, of 400 exposed, is seen whoever else there is: it leads."""
    case = uneven(tmp_path, 400)
    for known in ({"world_size": None}, {"sources": {"world_size": "the captures"}}):
        found = result("PD602", knowing(case, **known))
        assert (found.state, found.gain, bool(found.blames)) == ("fires", None, True)
        assert "world_size" in found.remedy


def test_how_many_ranks_end_together_is_no_fact_of_the_job(tmp_path: Path) -> None:
    """Two ranks that leave all of their eight all-reduces together are two of dp, with what shows it; that
    the job has no others nothing says, and no figure of the whole job may rest on it."""
    late = [(i % 2,) for i in range(8)]
    job = case_of(tmp_path, *batches(400, steps=8, late=late)).job
    assert {d.name: d.ranks for d in job.degrees}["dp"] == 2
    assert (job.facts.world_size, job.facts.dp, job.world_size) == (None, None, None)


def test_single_ranks_that_are_long_in_few_steps_are_not_called_uneven_batches(tmp_path: Path) -> None:
    """Each of four ranks computes 800 us in 2 steps of 8 running and 400 in the others: a mean of 500, of
    which the longest is 300 above. Of two in turn, each varies as much."""
    late = [(step // 2,) for step in range(8)]
    case = case_of(tmp_path / "flat", *batches(400, steps=8, late=late, ranks=4))
    found = result("PD602", knowing(case, pp=1, world_size=4, sources={}))
    assert (found.state, found.blames, found.advice) == ("fires", "", [])
    assert found.gain is not None
    assert "unequal" not in found.reason
    assert "clocks" in found.remedy
    # In twice as many thread blocks it is the batch, which no clock changes; in a hundredth more it is not.
    for blocks, leads in ((264, True), (133, False)):
        larger = case_of(tmp_path / str(blocks), *batches(400, steps=8, late=late, ranks=4, blocks=blocks))
        found = result("PD602", knowing(larger, pp=1, world_size=4, sources={}))
        assert (bool(found.blames), "larger batches" in found.reason) == (leads, leads)
    varied = result("PD602", uneven(tmp_path / "varied", 400))
    assert varied.blames
    assert "throttle" in varied.false_alarm


def test_unevenness_is_not_guessed(tmp_path: Path, steps: Case) -> None:
    three = result("PD602", uneven(tmp_path, 100, steps=3))
    assert (three.state, "3 steps" in three.reason) == ("skipped", True)
    case = uneven(tmp_path, 100)
    assert result("PD602", given(case, num_moe_experts=8)).state == "skipped"
    assert result("PD602", knowing(case, pp=2)).state == "skipped"
    assert result("PD602", steps).state == "skipped"
    assert result("PD602", knowing(steps, dp=1)).state == "not_applicable"


def test_padding_that_was_measured(steps: Case) -> None:
    edge = pd602_uneven_batches.MIN_PADDING_FRAC
    for frac, state in ((edge, "fires"), (edge - 0.001, "passes")):
        ranks = [replace(r, kernel_parts=replace(r.kernel_parts, padding_frac=frac)) for r in steps.ranks]
        case = replace(steps, captures=[replace(steps.captures[0], ranks=ranks)])
        unknown = result("PD602", case)
        assert (unknown.state, unknown.level, unknown.advice) == (state, "problem", [])
        alone = result("PD602", given(case, **{**PADDED, "micro_batch_size": 1}))
        advised = {"sequence_packing_size": 8192} if state == "fires" else {}
        assert (alone.state, settings_of(alone)) == (state, advised)


def test_padding_by_the_settings_alone(steps: Case) -> None:
    found = result("PD602", given(steps, **PADDED))
    assert (found.state, found.level) == ("fires", "information")
    assert result("PD602", given(steps, **{**PADDED, "sequence_packing_size": 0})).state == "fires"
    assert settings_of(found) == {"sequence_packing_size": 8192, "micro_batch_size": 1}
    assert result("PD602", given(steps, **{**PADDED, "micro_batch_size": 1})).state == "passes"
    assert result("PD602", given(steps, **{**PADDED, "sequence_packing_size": 8192})).state == "passes"


@pytest.mark.parametrize(
    ("count", "state"),
    [
        (pd904_steps_captured.MIN_STEPS - 1, "fires"),
        (pd904_steps_captured.MIN_STEPS, "passes"),
        (pd904_steps_captured.MAX_STEPS, "passes"),
        (pd904_steps_captured.MAX_STEPS + 1, "fires"),
    ],
)
def test_steps_captured(tmp_path: Path, count: int, state: str) -> None:
    case = given(case_of(tmp_path, laid((GEMM, 900), steps=count)), profile_step_start=10)
    found = result("PD904", case)
    assert (found.state, evidence_of(found)) == (state, [str(count)])
    assert settings_of(found) == ({"profile_step_end": 14} if state == "fires" else {})
    assert state == "passes" or found.level == "information"


@pytest.mark.parametrize(("cause", "level"), [("before", "problem"), ("compute", "information")])
def test_one_step_of_ranks_that_begin_apart_cannot_name_a_straggler(
    tmp_path: Path, cause: LateCause, level: str
) -> None:
    case = case_of(tmp_path, laid((GEMM, 900), steps=1), laid((GEMM, 900), steps=1))
    late = LateRank(rank=1, name="rank 1", wait_frac=0.9, lateness_ns=9, cause=cause, cause_ns=9)
    made = replace(case, job=replace(case.job, skew=replace(case.job.skew, latest=late)))
    assert result("PD904", made).level == level


def test_steps_of_an_unknown_window(tmp_path: Path) -> None:
    builder = laid((GEMM, 900), step="not a st")
    assert result("PD904", case_of(tmp_path, builder)).state == "skipped"
    path = write_nsys_sqlite(builder.build(), tmp_path / "given.sqlite")
    given_window = Case.of([measure_capture(path, WindowRequest(bounds_ns=(0, 500_000)))])
    assert result("PD904", given_window).state == "not_applicable"


def test_memory_that_nobody_looked_at(tmp_path: Path, steps: Case) -> None:
    full: dict[str, Value] = {"recompute_granularity": "full"}
    found = result("PD905", given(steps, "megatron_bridge", **full))
    assert (found.state, found.level) == ("fires", "information")
    assert settings_of(found) == {"record_memory_history": True}
    foreign = result("PD905", given(steps, None, **full))
    assert (foreign.advice, "_dump_snapshot" in foreign.remedy) == ([], True)
    assert result("PD905", knowing(steps, recompute="full")).state == "fires"
    assert result("PD905", given(steps, recompute_granularity=None)).state == "passes"
    assert result("PD905", steps).state == "skipped"
    assert result("PD905", remembering(given(steps, **full), device_memory(tmp_path))).state == "passes"


@pytest.mark.parametrize(
    "code",
    [
        *("PD201", "PD204", "PD401", "PD402", "PD403", "PD404", "PD405", "PD406"),
        *("PD501", "PD502", "PD505", "PD508", "PD509", "PD905"),
    ],
)
def test_what_gpus_do_is_not_asked_of_cpus(tmp_path: Path, steps: Case, code: str) -> None:
    (capture,) = steps.captures
    (rank,) = capture.ranks
    on_cpu = replace(steps, captures=[replace(capture, ranks=[replace(rank, on_host=True)])])
    found = result(code, remembering(given(on_cpu, fp8="hybrid"), device_memory(tmp_path, oom_events=1)))
    assert (found.state, "CPU" in found.reason) == ("not_applicable", True)
