"""PD301 to PD308: bubble, micro-batches, interleaving, uneven stages, messages, the schedule."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from perfdoc.knobs.knob import Value
from perfdoc.rules.checks import pd307_exposed_stage_messages as pd307
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts import bubble
from perfdoc.rules.facts.bubble import PER_STAGE
from perfdoc.rules.facts.stage_split import as_settings, layers_by_stage
from tests.planted.spec import JobSpec
from tests.rules.cases import evidence_of, gain_of, predicting, result, settings_of
from tests.rules.planted_cases import LLAMA, planted_case, shaped, under, with_exposed

EVEN: Mapping[str, Value] = {
    "num_layers": 32,
    "tensor_model_parallel_size": 1,
    "context_parallel_size": 1,
    "pipeline_model_parallel_size": 4,
    "virtual_pipeline_model_parallel_size": None,
    "pipeline_model_parallel_layout": None,
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
}


@pytest.fixture(scope="module")
def even() -> Case:
    """Four stages, eight micro-batches."""
    return planted_case(JobSpec(pp=4, micro_batches=8, steps=2))


@pytest.fixture(scope="module")
def heavy() -> Case:
    """The same, the last stage with 0.6 ms more in each of 8 forward passes: 23.5 ms a step, not 18.7."""
    return planted_case(JobSpec(pp=4, micro_batches=8, steps=2, stage_extra_ns=(0, 0, 0, 600_000)))


@pytest.fixture(scope="module")
def single() -> Case:
    return planted_case(JobSpec(dp=2, micro_batches=2, steps=2))


def with_pipeline(case: Case, **changes: object) -> Case:
    """The same with other figures of the pipeline."""
    found = replace(case.job.pipeline, **changes)  # type: ignore[arg-type]
    return replace(case, job=replace(case.job, pipeline=found))


def unmeasured(case: Case) -> Case:
    """The same where no bubble can be measured, as of one rank alone."""
    return with_pipeline(case, state="not_measured", bubble_frac=None)


@pytest.mark.parametrize("code", ["PD301", "PD302", "PD304", "PD305", "PD306", "PD307", "PD308"])
def test_without_a_pipeline(code: str, single: Case) -> None:
    """Two ranks that only reduce gradients show it as a setting would."""
    one = under(single, {"pipeline_model_parallel_size": 1})
    assert result(code, one).state == "not_applicable"
    assert result(code, single).state == "not_applicable"


def test_pd301_threshold_and_ceiling(even: Case) -> None:
    """3 / 11 of the time: eight micro-batches are few for four stages."""
    found = result("PD301", even)
    assert (found.state, found.level) == ("fires", "problem")
    rows = even.job.pipeline.stages
    assert gain_of(found).high_ms == pytest.approx(sum(r.bubble_ns for r in rows) / 8 / 1e6)
    edge = bubble.MIN_FRAC
    assert result("PD301", with_pipeline(even, bubble_frac=edge)).state == "fires"
    assert result("PD301", with_pipeline(even, bubble_frac=edge - 1e-9)).state == "passes"


def test_pd301_is_information_where_little_is_to_be_done(even: Case) -> None:
    """16 micro-batches for 4 stages are what the guides ask for; a gain of 5 % of a step is not little."""
    facts = {"micro_batches": 16, "bubble_frac": 3 / 19, "ideal_bubble_frac": 3 / 19}
    case = with_pipeline(even, **facts)
    assert result("PD301", case).level == "information"
    assert result("PD301", with_pipeline(case, micro_batches=15)).level == "problem"
    assert result("PD301", with_pipeline(case, bubble_frac=3 / 19 + 0.05)).level == "problem"
    for gain_ms, level in ((0.05, "problem"), (0.0499, "information")):  # of a step of 1 ms
        predicted = predicting(case, more_virtual_stages=(gain_ms, gain_ms, gain_ms))
        assert result("PD301", predicted).level == level


def test_pd301_reduces_gradients_meanwhile(even: Case) -> None:
    for exposed, value, advised in ((0.05, False, True), (0.049, False, False), (0.05, True, False)):
        case = under(with_exposed(even, "dp", exposed), {"overlap_grad_reduce": value})
        assert not settings_of(result("PD301", case))  # its own gain is not known
        found = result("PD301", predicting(case, overlapped_dp=(0.01, 0.02, 0.03)))
        assert settings_of(found) == ({"overlap_grad_reduce": True} if advised else {})


@pytest.mark.parametrize(
    ("vpp", "micro_batches", "state"), [(1, 16, "passes"), (1, 15, "fires"), (2, 8, "passes")]
)
def test_pd302_wants_four_a_stage(even: Case, vpp: int, micro_batches: int, state: str) -> None:
    settings = {**EVEN, "virtual_pipeline_model_parallel_size": vpp}
    case = unmeasured(under(even, settings))
    case = replace(case, job=replace(case.job, facts=replace(case.job.facts, micro_batches=micro_batches)))
    found = result("PD302", case)
    assert (found.state, PER_STAGE) == (state, 4)
    # 15 micro-batches, 4 stages: 3 / 18 of the step.
    assert evidence_of(found)[2] == f"{100 * (3 / (vpp * micro_batches + 3)):.1f} %"
    if state == "fires":
        assert found.level == "information"
        assert "4 stages: the guides advise 16 to 32" in found.reason


@pytest.mark.parametrize(
    ("size", "advised"),
    [
        (1, {"global_batch_size": 32}),  # 16 micro-batches on 2 replicas
        (2, {"micro_batch_size": 1}),
        (4, {"micro_batch_size": 2}),  # 8 of 4 are 16 of 2
        (6, {"micro_batch_size": 3}),
    ],
)
def test_pd302_advice(even: Case, size: int, advised: dict[str, Value]) -> None:
    batch = {"global_batch_size": 16 * size, "micro_batch_size": size, "data_parallel_size": 2}
    few = under(even, {**EVEN, **batch})
    found = result("PD302", unmeasured(few))
    assert (found.state, settings_of(found)) == ("fires", advised)
    # Where the bubble was measured one rule says it, with the same advice and that of chunks.
    chunks = {"virtual_pipeline_model_parallel_size": 2}
    assert result("PD302", few).state == "passes"
    assert settings_of(result("PD301", few)) == {**chunks, **advised}
    enough = {k: 2 * v if k == "global_batch_size" else v for k, v in batch.items()}
    assert settings_of(result("PD301", under(even, {**EVEN, **enough}))) == chunks


SPLIT: dict[str, dict[str, Value]] = {
    "balanced_layers": {"num_layers_in_first_pipeline_stage": 9, "num_layers_in_last_pipeline_stage": 5}
}
SAVES = {"balanced_layers": (2.0, 2.5, 3.0)}


def test_pd305_moves_no_layers_of_unknown_weight(heavy: Case) -> None:
    """What a layer takes is known where all hold experts, or none does."""
    for experts, of_layers, moves in ((None, None, True), (8, 32, True), (8, 24, False)):
        model = shaped(LLAMA, experts=experts, expert_layers=of_layers)
        found = result("PD305", predicting(under(heavy, EVEN, model=model), settings=SPLIT, **SAVES))
        assert (found.state, bool(settings_of(found))) == ("fires", moves)
    assert "pipeline_model_parallel_layout" in found.remedy


def test_pd301_advises_chunks_by_the_formula_where_nothing_was_replayed(even: Case) -> None:
    """Eight micro-batches on four stages: two chunks halve the bubble, where layers and micro-batches
    divide; not where the replay says otherwise."""
    one = {**EVEN, "virtual_pipeline_model_parallel_size": 1}
    batch = {"global_batch_size": 8, "micro_batch_size": 1, "data_parallel_size": 1}
    chunks = {"virtual_pipeline_model_parallel_size": 2}
    for changes, replayed, advised in (
        ({}, None, True),
        ({"num_layers": 36}, None, False),  # 36 are not a multiple of 8
        ({"virtual_pipeline_model_parallel_size": 2}, None, False),
        ({}, (0.0, 0.0, 0.1), False),
    ):
        case = with_pipeline(under(even, {**one, **batch, **changes}), vpp=1)
        case = case if replayed is None else predicting(case, more_virtual_stages=replayed)
        found = {k: v for k, v in settings_of(result("PD301", case)).items() if k in chunks}
        assert found == (chunks if advised else {}), changes


@pytest.mark.parametrize(
    ("transfer", "idle", "vpp", "to"),
    [
        (0.10, 0.02, 4, 2),  # 10 % / 2 - 2 % = 3 %
        (0.08, 0.02, 4, 2),  # just 2 %
        (0.078, 0.02, 4, None),
        (0.04, 0.05, 8, None),  # the bubble is the larger one
        (0.20, 0.01, 8, 2),  # to 2: 15 % - 3 %; to 4: 10 % - 1 %
        (0.20, 0.04, 8, 4),  # to 2: 15 % - 12 %; to 4: 10 % - 4 %
    ],
)
def test_pd304_compares_messages_with_the_bubble(
    even: Case, transfer: float, idle: float, vpp: int, to: int | None
) -> None:
    case = with_pipeline(even, transfer_frac=transfer, bubble_frac=idle, vpp=vpp)
    found = result("PD304", under(case, {"virtual_pipeline_model_parallel_size": vpp}))
    assert bubble.MIN_SAVED_FRAC == 0.02
    assert found.state == ("passes" if to is None else "fires")
    assert settings_of(found) == ({} if to is None else {"virtual_pipeline_model_parallel_size": to})


def test_pd304_and_the_replay(even: Case) -> None:
    """The replay halves the chunks: of that change its word counts, of another it says nothing."""
    slow = with_pipeline(even, transfer_frac=0.20, bubble_frac=0.01, vpp=4)
    for vpp, gains, state, method in (
        (4, (1.0, 2.0, 3.0), "fires", "replay"),
        (4, (0.0, 0.0, 0.1), "passes", None),
        (8, (0.0, 0.0, 0.1), "fires", "ceiling"),  # to 2, not to 4
    ):
        chunks = "virtual_pipeline_model_parallel_size"
        case = predicting(
            under(slow, {chunks: vpp}),
            settings={"fewer_virtual_stages": {chunks: vpp // 2}},
            fewer_virtual_stages=gains,
        )
        case = replace(case, job=replace(case.job, facts=replace(case.job.facts, vpp=vpp)))
        found = result("PD304", case)
        assert (found.state, found.gain and found.gain.method) == (state, method), vpp


def test_pd304_and_pd307_share_what_they_say(even: Case) -> None:
    """Messages are overlapped first; where they are, there can only be fewer."""
    slow = with_pipeline(even, transfer_frac=0.20, bubble_frac=0.01, vpp=4)
    chunks: dict[str, Value] = {"virtual_pipeline_model_parallel_size": 4}
    for overlap, states in ((False, ("passes", "fires")), (True, ("fires", "passes"))):
        case = under(slow, {**chunks, "overlap_p2p_comm": overlap})
        assert tuple(result(code, case).state for code in ("PD304", "PD307")) == states


def test_pd304_needs_chunks_to_take_away(even: Case) -> None:
    assert result("PD304", even).state == "not_applicable"
    assert result("PD304", with_pipeline(even, transfer_frac=None)).state == "skipped"


def test_pd305_names_the_stage_and_spreads_layers(heavy: Case, even: Case) -> None:
    found = result("PD305", predicting(under(heavy, EVEN), settings=SPLIT, **SAVES))
    assert (found.state, found.level, found.reason) == (
        "fires", "problem",
        "the last stage, which holds the output layer and the loss, takes longer than the others",
    )  # fmt: skip
    # 18.72 ms for 8 layers is 2.34 ms for one; the last stage has 4.8 ms, two layers' worth, besides.
    # (23.52 - 18.72) / 2.34 layers above the fastest.
    assert evidence_of(found)[1:] == ["1.18", "about 2.1"]
    # The split that was simulated, with its gain.
    assert settings_of(found) == SPLIT["balanced_layers"]
    assert (gain_of(found).low_ms, gain_of(found).high_ms) == (2.0, 3.0)
    assert settings_of(result("PD305", under(heavy, EVEN))) == {}
    # Switches that count the embedding and the loss as layers go off.
    counted = {**EVEN, "num_layers": 30, EMBEDDING: True, LOSS: True}
    off = result("PD305", predicting(under(heavy, counted), settings=SPLIT, **SAVES))
    assert settings_of(off) == {**SPLIT["balanced_layers"], EMBEDDING: False, LOSS: False}
    assert result("PD305", under(even, EVEN)).state == "passes"


def test_pd305_leaves_other_stages_and_unknown_splits_alone(heavy: Case) -> None:
    middle = with_pipeline(heavy, slowest_stage=2)
    assert result("PD305", under(middle, EVEN)).advice == []
    assert "PD303" in result("PD305", under(middle, EVEN)).remedy
    unknown = {k: v for k, v in EVEN.items() if k != "num_layers_in_last_pipeline_stage"}
    assert result("PD305", under(heavy, unknown)).advice == []


def test_pd305_leaves_one_slow_replica_to_pd303(heavy: Case) -> None:
    """Another replica of the last stage that is as fast as the other stages: it is no matter of layers."""
    rows = heavy.job.pipeline.stages
    for factor, state in ((1.0, "passes"), (1.2, "fires")):
        other = replace(rows[3], rank=7, own_ns=round(factor * rows[0].own_ns))
        found = result("PD305", with_pipeline(heavy, stages=(*rows, other)))
        assert (found.state, "PD303" in found.reason) == (state, state == "passes")


FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
LAYOUT, EMBEDDING = "pipeline_model_parallel_layout", "account_for_embedding_in_pipeline_split"
LOSS = "account_for_loss_in_pipeline_split"


@pytest.mark.parametrize(
    ("counts", "now", "settings"),
    [
        ([5, 5, 2], {}, {LAST: 2}),
        ([3, 5], {}, {LAST: 5}),
        ([3, 5], {FIRST: 4}, {FIRST: 3, LAST: 5}),  # what is set has to follow
        ([4, 4, 3], {FIRST: 3, LAST: 4}, {FIRST: 4, LAST: 3}),
        # The guides' switches, where these give it: 11 + 1 and 10 + 2 layers over three stages.
        ([4, 4, 3], {EMBEDDING: True}, {EMBEDDING: False, LOSS: True}),
        ([3, 4, 3], {}, {EMBEDDING: True, LOSS: True}),
        ([3, 4], {}, {EMBEDDING: True, LOSS: False}),
        ([4, 4, 2], {EMBEDDING: True}, {EMBEDDING: False, LAST: 2}),
        ([5, 3], {LAYOUT: "Et*4|t*4mL", "num_layers": 8}, {LAYOUT: "Et*5|t*3mL"}),
        ([3, 4, 5, 4], {FIRST: 4}, {FIRST: None, LAYOUT: "Ettt|tttt|ttttt|ttttmL"}),
    ],
)
def test_layers_as_settings(
    even: Case, counts: list[int], now: dict[str, Value], settings: dict[str, Value]
) -> None:
    assert as_settings(under(even, now), counts, 1) == settings


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, [8, 8, 8, 8]),
        ({"num_layers": 30, "account_for_embedding_in_pipeline_split": True,
          "account_for_loss_in_pipeline_split": True}, [7, 8, 8, 7]),
        ({"num_layers_in_last_pipeline_stage": 5}, [9, 9, 9, 5]),
        ({"num_layers_in_last_pipeline_stage": 6}, None),  # 26 over three stages
        ({"virtual_pipeline_model_parallel_size": 2}, None),
        ({"pipeline_model_parallel_layout": "Et|tL"}, None),
        ({LAYOUT: "E|t*16|(tt)*6|t*4L"}, [0, 16, 12, 4]),
        ({LAYOUT: "Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4L"}, None),  # two chunks a stage
        ({LAYOUT: "Et*8|t*8|t*8|t*7L"}, None),  # 31 of 32 layers
    ],
)  # fmt: skip
def test_layers_by_stage(even: Case, changes: dict[str, Value], layers: list[int] | None) -> None:
    assert layers_by_stage(under(even, {**EVEN, **changes}), 4) == layers


MODES = ("overlap_p2p_comm", "batch_p2p_comm", "overlap_p2p_comm_warmup_flush")


@pytest.mark.parametrize(
    ("vpp", "now", "advised"),
    [
        (2, (False, True, False), {"batch_p2p_comm": False, "overlap_p2p_comm": True,
                                   "overlap_p2p_comm_warmup_flush": True}),
        (2, (True, False, False), {"overlap_p2p_comm_warmup_flush": True}),
        (2, (True, False, True), {}),
        (None, (False, True, False), {}),  # without chunks nothing overlaps
    ],
)  # fmt: skip
def test_pd307_modes(
    even: Case, vpp: int | None, now: tuple[bool, bool, bool], advised: dict[str, Value]
) -> None:
    settings = {**EVEN, "virtual_pipeline_model_parallel_size": vpp, **dict(zip(MODES, now, strict=True))}
    case = under(with_pipeline(even, transfer_frac=0.02, handover_frac=0.01), settings)
    found = result("PD307", case)
    assert (found.state, settings_of(found)) == ("fires", advised)
    assert found.remedy or advised
    less = with_pipeline(case, transfer_frac=0.02, handover_frac=pd307.MIN_FRAC - 0.0201)
    assert result("PD307", less).state == "passes"


def test_pd307_planted_messages() -> None:
    """16 micro-batches with blocking messages of 0.5 ms each way beside 2.4 ms of passes."""
    slow = planted_case(JobSpec(pp=2, micro_batches=16, steps=2, pp_transfer_ns=500_000))
    assert result("PD307", slow).state == "fires"
    assert "with any overlap_p2p_comm" in result("PD307", slow).remedy


def sorted_passes(case: Case) -> Case:
    ranks = []
    for rank in case.ranks:
        passes = rank.pipeline.passes
        order = np.lexsort((~passes.is_forward, passes.step))
        passes = replace(passes, is_forward=passes.is_forward[order])
        ranks.append(replace(rank, pipeline=replace(rank.pipeline, passes=passes)))
    return replace(case, captures=[replace(case.captures[0], ranks=ranks)])


def test_pd308_tells_gpipe_from_1f1b(even: Case) -> None:
    """Eight micro-batches are too few for four stages (12 may fly); for one they are not."""
    assert result("PD308", even).state == "passes"  # the last stage turns at once

    gpipe = sorted_passes(even)
    assert result("PD308", gpipe).state == "skipped"
    assert result("PD308", with_pipeline(gpipe, pp=3)).state == "skipped"  # 9 may fly
    found = result("PD308", with_pipeline(gpipe, pp=2))
    assert (found.state, found.level, evidence_of(found)) == ("fires", "information", ["8"])
