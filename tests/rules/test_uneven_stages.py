"""PD305, PD301 and PD101 on simulated jobs: what is the layout's own price is called so, and what a host
loses is no matter of layers."""

import importlib
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.results.what_if import WhatIfCause, no_what_if
from perfdoc.rules.checks import pd305_uneven_stages
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import given
from perfdoc.rules.facts.culprit import cause_of
from perfdoc.rules.facts.stage_split import EMBEDDING, LOSS
from perfdoc.simulator.replay.edits.pipeline import FIRST, LAST
from tests.megatron_core import import_core
from tests.planted.spec import JobSpec
from tests.rules.cases import evidence_of, gain_of, result, with_predictions
from tests.rules.simulated_cases import simulated_case
from tests.rules.test_job_rules import planted

LAYOUT = "pp=2,micro_batches=4"
LAID = "pipeline_model_parallel_layout"


def test_a_stage_whose_host_is_late_has_no_layers_too_many() -> None:
    """Stage 0 is launched late and takes longer."""
    case = simulated_case("dense", LAYOUT, "launch_starved=3000")
    found = result("PD305", case)
    assert (found.state, found.reason) == (
        "passes",
        "stage 0 takes longer because its host launches late (PD201): moving layers does not change that",
    )
    assert result("PD201", case).state == "fires"


def test_a_long_stage_beyond_those_that_a_group_is_said_to_have(tmp_path: Path) -> None:
    """Messages show a third stage, which is long, where the group is said to be of two ranks: no time of it
    is known, so no host is blamed, and the rule has a verdict."""
    case = simulated_case("dense", LAYOUT, "launch_starved=3000")
    long = with_long_stage(tmp_path, 1.4, 3).what_if
    assert result("PD305", replace(case, what_if=long)).state == "fires"


def test_layers_that_are_moved_by_hand_gain_what_the_model_says() -> None:
    """The output layer of 128,256 words takes about as long as two layers."""
    case = simulated_case("dense", LAYOUT)
    found, whole = result("PD305", case), case.prediction("balanced_layers")
    assert (found.state, found.level) == ("fires", "problem")
    # Four layers a stage: one moves to the first, as it is set.
    ends = {"num_layers_in_first_pipeline_stage": "5", "num_layers_in_last_pipeline_stage": "3"}
    assert {piece.knob: piece.to_value for piece in found.advice} == ends
    assert "which holds the output layer and the loss" in found.reason
    assert whole is not None
    assert found.gain == whole.gain
    assert found.gain.method == "model"
    # Of chunks no whole layers can be tried: four layers and six, replayed with five each, are a sixth less.
    chunks = simulated_case("dense", "pp=2,vpp=2,micro_batches=16")
    gain = result("PD305", chunks).gain
    assert gain is not None
    assert gain.method == "replay"
    assert gain.mid_ms == pytest.approx(given(chunks.unit_ms) / 6, abs=0.03 * given(chunks.unit_ms))


@pytest.mark.parametrize(
    ("mid_ms", "level"), [(-1.41, "information"), (0.0, "information"), (1.41, "problem")]
)
def test_layers_that_gain_nothing_elsewhere_are_not_to_be_moved(mid_ms: float, level: str) -> None:
    case = simulated_case("dense", LAYOUT)
    predictions = [
        replace(p, gain=replace(p.gain, low_ms=mid_ms - 4, mid_ms=mid_ms, high_ms=mid_ms + 4))
        if p.key == "balanced_layers"
        else p
        for p in case.gains.predictions
    ]
    found = result("PD305", with_predictions(case, predictions))
    assert (found.state, found.level) == ("fires", level)
    assert found.remedy.startswith("Keep the layers" if level == "information" else "Set `num_layers_in_")
    assert ("no other split of whole layers" in found.reason) == (level == "information")


def test_a_split_that_does_not_fit_is_not_advised() -> None:
    """A stage with more layers needs more memory than tune would offer: no setting and no prediction; what
    the stage costs is known from the replay without its excess."""
    case = simulated_case("dense", LAYOUT)
    predictions = [
        replace(p, left_out="needs too much") if p.key == "balanced_layers" else p
        for p in case.gains.predictions
    ]
    found = result("PD305", with_predictions(case, predictions))
    assert (found.state, found.level, found.advice) == ("fires", "information", [])
    gain, cause = gain_of(found), cause_of(case.what_if, "long_stage")
    assert cause is not None
    assert (gain.method, gain.mid_ms, found.action) == ("ceiling", None, "Find what else slows this stage")
    assert given(gain.high_ms) * 1e6 >= cause.saved_ns > 0
    unknown = replace(case, what_if=no_what_if("not replayed"))
    assert result("PD305", with_predictions(unknown, predictions)).gain is None
    assert found.reason.endswith("; the fastest split needs too much")
    more = [
        replace(p, left_out="needs too much") if p.key == "more_virtual_stages" else p for p in predictions
    ]
    bubble = result("PD301", with_predictions(case, more))
    assert "virtual_pipeline_model_parallel_size" not in {piece.knob for piece in bubble.advice}
    assert bubble.remedy.startswith("More virtual stages would, but: needs too much.")


def loaded(case: Case, *layers: float) -> Case:
    """Stages of equal layers that take so much more than the fastest, in layers' time (four layers each)."""
    pipeline = case.job.pipeline
    rows = tuple(
        replace(row, stage=stage, own_ns=round(pipeline.stages[0].own_ns * (1 + more / 4)))
        for stage, (row, more) in enumerate(zip((pipeline.stages[0],) * len(layers), layers, strict=True))
    )
    slowest = layers.index(max(layers))
    found = replace(pipeline, stages=rows, pp=len(rows), slowest_stage=slowest)
    job = replace(case.job, pipeline=found)
    case = with_predictions(case, [replace(p, settings={}) for p in case.gains.predictions])
    return replace(case, job=job, configuration=Configuration(values={"num_layers": 4 * len(rows)}))


@pytest.mark.parametrize(
    ("layers", "level"),
    [
        ((0, 0.98), "information"),
        ((0, 1.02), "problem"),
        ((0.9, 0, 0, 0), "information"),  # 0.7 above the mean, and no better off with a layer less
        ((1.4, 1.2, 1.2, 0), "problem"),  # 0.45 above the mean; the last stage has room for a layer
    ],
)
def test_less_than_a_layer_cannot_be_spread(layers: tuple[float, ...], level: str) -> None:
    assert pd305_uneven_stages.MIN_LAYERS == 1
    found = result("PD305", loaded(simulated_case("dense", LAYOUT), *layers))
    assert evidence_of(found)[-1] == f"about {max(layers):.2g}"
    assert (found.state, found.level) == ("fires", level)
    assert ("no split of whole layers is more even" in found.reason) == (level == "information")
    assert found.remedy.startswith(
        "No whole layer can be moved" if level == "information" else "Set `num_layers_in_"
    )


def test_a_bubble_that_the_schedule_must_have_is_its_price() -> None:
    case = simulated_case("dense", LAYOUT)
    assert result("PD301", case).reason == (
        "stages wait for the pipeline to fill and drain, expected for PP=2, 4 micro-batches, no "
        "interleaving; faster kernels do not change its share"
    )
    pipeline = replace(case.job.pipeline, bubble_frac=0.3)  # 20 % would be the schedule's own
    larger = replace(case, job=replace(case.job, pipeline=pipeline))
    assert result("PD301", larger).reason == "stages wait for the pipeline to fill and drain"


@pytest.mark.slow
def test_communication_that_is_overlapped_and_too_long_for_the_compute_beside_it_says_so() -> None:
    words = "overlapped, but the compute of 4 micro-batches is too short to hide it"
    assert result("PD101", simulated_case("dense", "cp=4")).reason == words
    # Small buckets are mended by larger ones, and gradients that are reduced at the end by overlap.
    for layout, fault in (("dp=2", "small_buckets"), ("dp=2,micro_batches=2", "no_overlap=dp")):
        assert result("PD101", simulated_case("dense", layout, fault)).reason == "not hidden by compute"


def with_long_stage(tmp_path: Path, ratio: float, pp: int, vpp: int = 1, **settings: Value) -> Case:
    """Whose last stage is so long: 45 us of a millisecond are its excess, 35 with that spread over all."""
    case = planted(tmp_path, JobSpec(dp=4, micro_batches=2))
    cause = WhatIfCause(
        kind="long_stage",
        stage=pp - 1,
        ratio=ratio,
        peers=3,
        step_ns=955_000,
        saved_ns=45_000,
        low_ns=45_000,
        high_ns=45_000,
        even_ns=965_000,
    )
    what_if = replace(
        no_what_if(""), state="measured", steps=2, measured_ns=1_000_000, step_ns=1_000_000, causes=[cause]
    )
    what_if = replace(what_if, pp=pp, vpp=vpp)
    return replace(case, what_if=what_if, configuration=Configuration(values={**settings}))


def test_megatron_core_takes_what_an_end_stage_is_to_keep(tmp_path: Path) -> None:
    """Of 200 random models, stages and virtual stages: each split that is named divides over both, is shorter
    than the equal one, and megatron-core builds it; else a layout is named, which it takes always."""
    config = import_core("megatron.core.transformer").TransformerConfig
    draw, named = random.Random(0), 0
    case = with_long_stage(tmp_path, 1.5, 2)
    for _ in range(200):
        pp, vpp, each = draw.choice((2, 4, 8)), draw.choice((1, 2, 3, 4)), draw.randint(1, 8)
        layers, ratio = pp * vpp * each, draw.uniform(1.05, 3.0)
        (cause,) = case.what_if.causes
        cause = replace(cause, stage=pp - 1, ratio=ratio)
        what_if = replace(case.what_if, pp=pp, vpp=vpp, causes=[cause])
        values = {"num_layers": layers, "pipeline_model_parallel_size": pp}
        one = replace(case, what_if=what_if, configuration=Configuration(values={**values}))
        remedy = pd305_uneven_stages.evaluate(one).remedy
        split = re.search(r"to (\d+), which leaves (\d+) on each", remedy)
        if split is None:
            assert remedy.startswith(("No whole layer", "Move layers off this stage in `pipeline_model_par"))
            continue
        keeps, others = int(split[1]), int(split[2])
        assert keeps + others * (pp - 1) == layers
        stays = (ratio - 1) * layers / pp  # the output layer, in layers
        assert max(others, keeps + stays) < ratio * layers / pp
        for n in range(vpp, layers, vpp):
            if (layers - n) % ((pp - 1) * vpp) == 0:
                longest = max((layers - n) / (pp - 1), n + stays)
                even = pd305_uneven_stages.EVEN_RATIO
                assert even * longest >= max(others, keeps + stays) - 1e-9, "about the shortest of all"
        config(
            num_layers=layers,
            hidden_size=8,
            num_attention_heads=1,
            pipeline_model_parallel_size=pp,
            virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None,
            num_layers_in_last_pipeline_stage=keeps,
            pipeline_dtype=torch_dtype(),
            cuda_graph_scope=[],
        )
        assert "account_for_loss" not in remedy, "layers plus one do not divide"
        named += 1
    assert named >= 50


def torch_dtype() -> object:
    """That stages exchange."""
    return importlib.import_module("torch").bfloat16


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"pipeline_model_parallel_layout": "Et*8|t*8|t*8|t*8L"},
            "Move layers off this stage in `pipeline_mo",
        ),
        ({"account_for_loss_in_pipeline_split": True}, "Switch `account_for_loss_in_pipeline_split` off"),
        # Which it is not an equal share of: what it keeps is not known where other settings are not.
        ({"num_layers_in_last_pipeline_stage": 5}, "`num_layers_in_last_pipeline_stage` lower: its layers"),
    ],
)
def test_sizes_switches_and_layouts_exclude_each_other(
    tmp_path: Path, settings: dict[str, Value], said: str
) -> None:
    case = with_long_stage(tmp_path, 1.63, 4, num_layers=32, **settings)
    assert said in pd305_uneven_stages.evaluate(case).remedy


@pytest.mark.parametrize(
    ("ratio", "pp", "settings", "said"),
    [
        # 8, 8, 8 and 7 now, and 7 x 8 = 9.2 with an output layer of 2.2: 9 with 4 on it, and 9.2 as it is.
        (1.15, 4, {"num_layers": 31, LOSS: True}, "to 4, which leaves 9 on each other stage. Switch"),
        # 8.8 now: no better with 9 on another one.
        (1.1, 4, {"num_layers": 31, LOSS: True}, "No whole layer can be moved"),
        # 10, 10, 10 and 2: 11 on one of the others is no less than 1.05 x 10.
        (1.05, 4, {"num_layers": 32, LAST: 2}, "No whole layer can be moved"),
        # 9, 9, 9 and 5: 14.7 now with 9.67 of its own; 2 makes 11.67, and 10 of the others.
        (1.63, 4, {"num_layers": 32, LAST: 5}, "to 2, which leaves 10 on each"),
        # 4 and 12, no longer than 12: a layer is a layer, and nothing else stays.
        (3.0, 2, {"num_layers": 16, LAST: 12}, "to 8, which leaves 8 on each"),
        # A layout says what all hold: 13.04 now with an output layer of 5.04; 10.04 with 5, 9 on the others.
        (1.63, 4, {LAID: "Et*8|t*8|t*8|t*8L"}, f"off this stage in `{LAID}`, to `Et*9|t*9|t*9|t*5L`."),
        # 2.25 x 8 / 3 = 6 with an output layer of 2; the embedding's stage has none. 4 of 4, 4, 4: none.
        (2.25, 4, {LAID: "E|t*4|t*4|t*4L", "num_layers": 12}, f"`{LAID}`, to `E|t*5|t*4|t*3L`."),
        (1.5, 4, {LAID: "E|t*4|t*4|t*3L", "num_layers": 11}, "No whole layer can be moved"),
        # Multi-token prediction stays where it is; chunks of a stage are not told apart.
        (1.63, 4, {LAID: "Et*8|t*8|t*8|t*8mL", "mtp_num_layers": 1}, "to `Et*9|t*9|t*9|t*5mL`."),
        (1.63, 2, {LAID: "Et*8|t*8|t*8|t*8L"}, f"in `{LAID}`."),
        # 31 layers and 32 laid: not what runs.
        (1.63, 4, {LAID: "Et*8|t*8|t*8|t*8L", "num_layers": 31}, f"in `{LAID}`."),
        # The first one has a size of its own, or an embedding counted as a layer: they are not alike.
        (1.3, 4, {"num_layers": 33, FIRST: 9}, f"Set `{LAST}` lower"),
        (1.6, 8, {"num_layers": 62, LOSS: True, EMBEDDING: True}, f"Set `{LAST}` lower"),
        (
            1.1,
            4,
            {"num_layers": 32, "pipeline_model_parallel_layout": "Et*6|t*9|t*9|t*8L"},
            "Move layers off",
        ),
    ],
)
def test_what_an_end_stage_keeps_is_of_what_the_settings_give_it(
    tmp_path: Path, ratio: float, pp: int, settings: dict[str, Value], said: str
) -> None:
    case = with_long_stage(tmp_path, ratio, pp)
    values = {"pipeline_model_parallel_size": pp, **settings}
    whole = Configuration(values=values, dialect="megatron_core", complete=True)
    case = replace(case, configuration=whole)
    assert said in pd305_uneven_stages.evaluate(case).remedy


@pytest.mark.parametrize(
    ("ratio", "layers", "moved"),
    [
        # With one of 8 layers more, another stage takes 9/8 of the others: no better below that.
        (1.06, 32, ""),
        (1.125, 32, ""),
        (1.2, 32, "to 5, which leaves 9 on each"),  # 9 then, 8 x 1.2 = 9.6 now; 2 would make 10 of the others
        (1.63, 32, "to 5, which leaves 9 on each"),  # 5 + 5.04 that stay; with 2 it is 10 of the others
        (1.06, 128, "to 29, which leaves 33 on each"),  # 32 x 1.06 = 33.9 now
        # Layers unknown: of 8 it would be 0.36, then 0.6, which one of 8 is too much for, then 1.2.
        (1.06, None, ""),
        (1.1, None, "to about 0.92 x layers / 4. `--set model=NAME`"),
        (1.2, None, "x layers / 4, equally many on the others; e.g. of 32: 5 there, 9 on each other."),
    ],
)
def test_a_long_end_stage_gives_whole_layers_or_none(
    tmp_path: Path, ratio: float, layers: int | None, moved: str
) -> None:
    set_ = {} if layers is None else {"num_layers": layers}
    found = pd305_uneven_stages.evaluate(with_long_stage(tmp_path, ratio, 4, **set_))
    assert found.remedy.startswith(
        "Set `num_layers_in_last_pipeline_stage`" if moved else "No whole layer can be moved"
    )
    assert moved in found.remedy
    # 45 us at most without the excess; 35 us with it spread over all stages, which takes layers.
    assert found.gain is not None
    expected = ("replay", 0.035, 0.045) if moved else ("ceiling", None, 0.045)
    assert (found.gain.method, found.gain.mid_ms, found.gain.high_ms) == expected
