"""Named configurations, overrides, origins and the errors that name the nearest key."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from perfdoc.trainer.config import ResolvedConfig, named_configs, resolve
from perfdoc.trainer.config.resolve import KEYS, SECTIONS
from perfdoc.trainer.layout import default_world_size, plan
from tests.trainer.overrides import KERNELS


def test_names_are_unique_over_sections() -> None:
    names = [entry.name for cls in SECTIONS.values() for entry in dataclasses.fields(cls)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert set(KEYS) == set(names)


def test_every_named_configuration_is_valid_for_its_own_number_of_ranks() -> None:
    assert named_configs() == ["gpt_125m", "llama3_8b", "mixtral_8x7b", "tiny"]
    expected = {
        "gpt_125m": (1, "cuda"),
        "llama3_8b": (8, "cuda"),
        "mixtral_8x7b": (16, "cuda"),
        "tiny": (2, "cpu"),
    }
    for name, (ranks, device) in expected.items():
        config = resolve(name).config
        assert default_world_size(config) == ranks
        assert plan(config, ranks, device, KERNELS).world_size == ranks  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"moe\.moe_grouped_gemm = true: needs Transformer Engine"):
        plan(resolve("mixtral_8x7b").config, 16, "cuda", ())


def test_origins_and_short_keys() -> None:
    resolved = resolve(
        "tiny", ["lr=1e-4", "parallel.tensor_model_parallel_size=2", "recompute_modules=[core_attn]"]
    )
    rows = {key: (value, origin) for key, value, origin in resolved.rows()}
    assert rows["optimizer.lr"] == (1e-4, "override")
    assert rows["parallel.tensor_model_parallel_size"] == (2, "override")
    assert rows["recompute.recompute_modules"] == (("core_attn",), "override")
    assert rows["training.train_iters"] == (100, "file tiny")
    assert rows["optimizer.adam_beta1"] == (0.9, "default")
    assert len(rows) == len(KEYS)


def test_a_resolved_configuration_survives_its_file() -> None:
    resolved = resolve("mixtral_8x7b", ["bucket_size=1000", "nccl_debug=INFO", "eval_interval=null"])
    again = ResolvedConfig.from_json(resolved.to_json())
    assert again.config == resolved.config
    assert again.origins == resolved.origins
    assert again.name == "mixtral_8x7b"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("lrr=1", "unknown key lrr; did you mean lr?"),
        (
            "tensor_parallel_size=2",
            "unknown key tensor_parallel_size; did you mean tensor_model_parallel_size?",
        ),
        ("model.lr=3", "unknown key model.lr; did you mean optimizer.lr?"),
        ("lr=fast", "optimizer.lr = 'fast': Expected `float`, got `str`"),
        ("lr=-1", "optimizer.lr = -1: Expected `float` > 0.0"),
        ("lr=.inf", "optimizer.lr = inf: expected a finite number"),
        ("sequence_parallel=1", "parallel.sequence_parallel = 1: Expected `bool`, got `int`"),
        ("params_dtype=bf17", "precision.params_dtype = 'bf17': Invalid enum value 'bf17'"),
        ("num_moe_experts=1.5", "moe.num_moe_experts = 1.5: Expected `int | null`, got `float`"),
        ("num_layers", "'num_layers': an override is key=value"),
        ("text=[a", "data.text: '[a' is not a value"),
        ("text=!!python/name:os.system", "is not a value"),
    ],
)
def test_a_bad_override_names_its_key(override: str, expected: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        resolve("tiny", [override])
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: {num_layer: 3}", "unknown key model.num_layer; did you mean model.num_layers?"),
        ("modle: {num_layers: 3}", "unknown section modle; did you mean model?"),
        ("num_layers: 3", "num_layers belongs in the section model"),
        ("model: 3", "model is a section"),
        ("model:\n  num_layers: 3\n  num_layers: 4", "line 3: num_layers is given twice"),
        ("- a", "expected `section: {key: value}`"),
        ("a: [", "line "),
        ("? [x]\n: 3", "line 1: "),
    ],
)
def test_a_bad_file_is_told_with_its_path(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r".") as caught:
        resolve(str(path))
    assert str(caught.value).startswith(str(path))
    assert expected in str(caught.value)


def test_a_missing_name_or_file() -> None:
    with pytest.raises(
        ValueError, match=r"no configuration named 'tyni'; did you mean tiny\?; there are gpt_125m"
    ):
        resolve("tyni")
    with pytest.raises(ValueError, match=r"/nowhere/x\.yaml: No such file"):
        resolve("/nowhere/x.yaml")


def test_resolved_configuration_that_is_none() -> None:
    for text in ("", "[]", "{}", '{"name": 1, "config": {}, "origins": {}}', "{"):
        with pytest.raises(ValueError, match="not a resolved configuration"):
            ResolvedConfig.from_json(text)


def test_short_names_are_settings_with_and_without_the_section() -> None:
    given = ["tp=2", "parallel.pp=2", "cp=1", "dp=4", "mbs=2", "training.gbs=16", "seq=256", "sp=true"]
    parallel, training = resolve("tiny", given).config.parallel, resolve("tiny", given).config.training
    assert parallel.tensor_model_parallel_size == parallel.pipeline_model_parallel_size == 2
    assert (parallel.data_parallel_size, parallel.sequence_parallel) == (4, True)
    assert (training.micro_batch_size, training.global_batch_size) == (2, 16)
    assert resolve("tiny", given).config.model.seq_length == 256
    assert resolve("tiny", ["ep=2"]).origins["parallel.expert_model_parallel_size"] == "override"
    with pytest.raises(ValueError, match=r"did you mean parallel\.tensor_model_parallel_size"):
        resolve("tiny", ["model.tp=2"])


@pytest.mark.parametrize("name", ["llama3-8b", "llama3_8b", "Llama3-8B"])
def test_names_are_written_with_either_dash(name: str) -> None:
    assert resolve(name) == resolve("llama3_8b")


def test_a_short_run_has_a_short_warmup_unless_one_is_asked_for() -> None:
    assert resolve("tiny").config.optimizer.lr_warmup_iters == 20
    short = resolve("tiny", ["train_iters=12"])
    assert short.config.optimizer.lr_warmup_iters == 6
    assert short.shortened.startswith("optimizer.lr_warmup_iters = 6")
    assert plan(short.config, 2, "cpu", ()).world_size == 2
    for given in (["train_iters=21"], ["train_iters=12", "lr_warmup_iters=20"]):
        kept = resolve("tiny", given)
        assert (kept.config.optimizer.lr_warmup_iters, kept.shortened) == (20, "")
