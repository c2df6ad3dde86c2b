"""What a shell offers after <TAB>."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.cli import completion
from perfdoc.knobs.load import catalogue
from perfdoc.rules.engine.registry import all_rules
from perfdoc.traces.known_models import known_models
from perfdoc.trainer.config.resolve import KEYS, named_configs


def names(offered: completion.Offered) -> list[str]:
    return [name for name, _ in offered]


def test_rules_are_those_that_run_with_their_titles() -> None:
    own = {r.meta.code: r.meta.title for r in all_rules() if type(r.meta).__module__.startswith("perfdoc.")}
    assert dict(completion.rule_codes("")) == own
    assert names(completion.rule_codes("pd10")) == [code for code in sorted(own) if code.startswith("PD10")]
    assert names(completion.rule_codes("PD101,PD20"))[0] == "PD101,PD201"


def test_knobs_configurations_settings_and_models() -> None:
    knobs = [k.id for k in catalogue().values() if k.kind == "knob"]
    assert names(completion.knob_names("")) == knobs
    assert names(completion.knob_names("bucket_s")) == ["bucket_size"]
    assert names(completion.settings("")) == [f"{key}=" for key in KEYS]
    assert "tensor_model_parallel_size=" in names(completion.configuration_or_setting("tensor_"))
    assert names(completion.configurations("gpt")) == ["gpt_125m"]
    assert names(completion.published_models("")) == list(known_models())


def test_files_of_yaml_are_offered_beside_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    for name in ("mine.yaml", "other.txt", ".hidden.yaml", "jobs/a.yml"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    assert names(completion.configurations("")) == [*named_configs(), "jobs/", "mine.yaml"]
    assert names(completion.configurations("jobs/")) == ["jobs/a.yml"]
    assert names(completion.configurations("no/such/")) == []
