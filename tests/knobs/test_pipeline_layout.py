"""The flexible pipeline layout: what it says, what megatron-core makes of it, and what forbids it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from perfdoc.knobs.check import check
from perfdoc.knobs.configuration import Configuration, View
from perfdoc.knobs.pipeline_layout import LAYOUT, stages_of
from perfdoc.trainer.config import resolve
from perfdoc.trainer.constraints import as_knobs
from perfdoc.trainer.layout import plan
from tests.megatron_core import import_core
from tests.rules.cases import result
from tests.rules.simulated_cases import simulated_case
from tests.rules.test_uneven_stages import loaded


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Et|tL", ["Et", "tL"]),
        ("E,tt|t*3|L", ["Ett", "ttt", "L"]),
        ("Et*2|(tt|)*2m|L", ["Ett", "tt", "tt", "m", "L"]),
        ("xy", None),
        ("", None),
        ("t*9999", None),
        ("E(tL", None),
    ],
)
def test_a_layout_is_read(text: str, stages: list[str] | None) -> None:
    found = stages_of(text)
    assert (None if found is None else list(found.stages)) == stages


def test_it_is_read_as_megatron_core_reads_it() -> None:
    layout = import_core(
        "megatron.core.transformer.pipeline_parallel_layer_layout"
    ).PipelineParallelLayerLayout
    short = {"embedding": "E", "loss": "L", "decoder": "t", "mtp": "m"}
    rng = random.Random(4)
    for _ in range(300):
        text = "".join(
            rng.choice(["E", "t", "t*3", "|", ",", "(t|)*2", "(tt)*3", "m", "L"]) for _ in range(8)
        )
        found = stages_of(text)
        theirs = ["".join(short[x.name] for x in row) for row in layout.parse_str_to_list(text)]
        assert found is None or list(found.stages) == theirs, text
        assert found is not None or not text.strip(","), text


def test_virtual_stages_follow_from_it() -> None:
    values = {LAYOUT: "Et|t|t|tL", "pipeline_model_parallel_size": 2, "num_layers": 4}
    for more in ({}, {"virtual_pipeline_model_parallel_size": None}):
        assert View(Configuration(values={**values, **more})).vpp == 2
    assert View(Configuration(values={**values, "virtual_pipeline_model_parallel_size": 4})).vpp == 4


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("Ett|ttL", None),
        ("Et|tttL", None),
        ("tt|ttL", "layout-does-not-fit"),
        ("Ett|tL", "layout-does-not-fit"),
        ("Et|t|ttL", "layout-does-not-fit"),
        ("Et|t|t|tL", "layout-against-vpp"),
    ],
)
def test_what_does_not_fit_is_forbidden(layout: str, name: str | None) -> None:
    job = Configuration(
        values={
            **{"num_layers": 4, "pipeline_model_parallel_size": 2, "mtp_num_layers": None},
            **{"virtual_pipeline_model_parallel_size": 1, "num_layers_in_first_pipeline_stage": None},
        }
    )
    found = [v.constraint.name for v in check(job, {LAYOUT: layout}) if v.constraint]
    assert found[:1] == ([] if name is None else [name])


def test_pd305_advises_a_layout_that_the_trainer_takes() -> None:
    """Four stages of four layers; the first takes four layers longer than the even ones, the third two."""
    overrides = [
        *["pipeline_model_parallel_size=4", "num_layers=16", "data_parallel_size=null"],
        *["overlap_grad_reduce=false", "overlap_param_gather=false", "bucket_size=null"],
    ]
    case = loaded(simulated_case("dense", "pp=2,micro_batches=4"), 4, 0, 2, 0)
    case = replace(case, configuration=as_knobs(resolve("tiny", overrides).config, 4))
    found = result("PD305", case)
    (piece,) = found.advice
    assert (piece.knob, piece.forbidden, piece.from_value) == (LAYOUT, "", "null")
    assert piece.gain is not None
    stages = stages_of(piece.to_value)
    assert stages is not None
    counts = [stage.count("t") for stage in stages.stages]
    assert (sum(counts), len(counts)) == (16, 4)
    assert counts[0] < counts[2] < counts[1]
    advised = resolve("tiny", [*overrides, f"{LAYOUT}={piece.to_value}"]).config
    assert plan(advised, 4, "cpu").pp == 4
