"""The flexible pipeline layout: what it says, what megatron-core makes of it, and what forbids it."""

from __future__ import annotations

import random

import pytest

from perfdoc.knobs.check import check
from perfdoc.knobs.configuration import Configuration, View
from perfdoc.knobs.pipeline_layout import LAYOUT, stages_of
from tests.megatron_core import import_core


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
