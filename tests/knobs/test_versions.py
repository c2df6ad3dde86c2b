"""Versions of other frameworks: shown by names, or assumed; names of two do not go together."""

from __future__ import annotations

import pytest

from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.naming.meaning import names_of
from perfdoc.knobs.naming.versions import version_shown, versions

TITAN = "[training]\nlocal_batch_size = 1\n[parallelism]\ntensor_parallel_degree = 2\n"


@pytest.mark.parametrize(
    ("more", "version"),
    [
        ("", "0.2, assumed"),
        ("[compile]\nenable = true\nenable_async_tensor_parallel = true\n", "0.3, by compile."),
        ("[experimental]\ncontext_parallel_degree = 2\n", "before 0.1, by experimental."),
    ],
)
def test_the_version_is_named_with_what_shows_it(more: str, version: str) -> None:
    assert version in lint(TITAN + more, "a.toml").dialect_reason


def test_names_of_two_versions_are_told() -> None:
    compiled = "[compile]\nenable = true\nenable_async_tensor_parallel = true\n"
    text = f"{TITAN}{compiled}[optimizer]\nearly_step_in_backward = true\n"
    (finding,) = lint(text, "a.toml").findings
    assert (finding.code, finding.severity, finding.key) == (
        "PL102",
        "warning",
        "optimizer.early_step_in_backward",
    )
    alone = text.replace("enable_async_tensor_parallel = true\n", "")
    assert lint(alone, "a.toml").findings == ()


def test_every_name_is_one_of_the_catalogue() -> None:
    for dialect, known in versions().items():
        assert known.assumed in known.versions
        assert {*known.since, *known.until} <= names_of(dialect).by_path.keys()  # type: ignore[arg-type]
        assert set(known.since.values()) <= set(known.versions)
    assert version_shown("megatron_core", ["TransformerConfig.fp8"]) == ("", "")


FLEX = (
    "TransformerConfig(num_moe_experts=8, moe_shared_expert_overlap=True, moe_token_dispatcher_type='flex',"
    " moe_shared_expert_intermediate_size=2048, num_layers=8, hidden_size=4096)\n"
)
COMMAND = (
    "torchrun pretrain_gpt.py --num-layers 8 --hidden-size 4096 --num-experts 8 --moe-shared-expert-overlap"
    " --moe-token-dispatcher-type flex --moe-shared-expert-intermediate-size 2048 --bf16\n"
)


@pytest.mark.parametrize(
    ("text", "name", "severity"),
    [
        (FLEX, "x.py", "note"),
        (f"PIN = 'megatron-core==0.16.2'\n{FLEX}", "x.py", "error"),
        (f"PIN = 'megatron-core==0.17.0'\n{FLEX}", "x.py", None),
        (f"# megatron-core==0.17.0\n{FLEX}", "x.py", "note"),
        (f"A = 'megatron-core==0.17.0'\nB = 'megatron-core==0.16.1'\n{FLEX}", "x.py", "note"),
        (f"A = 'score_v0.17'\n{FLEX}", "x.py", "note"),
        (COMMAND, "x.sh", "error"),
        (f"pip install megatron-core==0.16.1\n{COMMAND}", "x.sh", "error"),
        (f"pip install 'megatron_core[dev] ~= 0.17.0rc1'\n{COMMAND}", "x.sh", None),
        (f"git checkout core_v0.18.0\n{COMMAND}", "x.sh", None),
        (f"git checkout core_r0.15.0\n{COMMAND}", "x.sh", "error"),
    ],
)
def test_a_rule_of_older_cores_is_judged_by_the_version(text: str, name: str, severity: str | None) -> None:
    """From 0.17 on the flex dispatcher takes the overlap; a program that names no version may be of any."""
    findings = [f for f in lint(text, name).findings if "shared-overlap-excludes-flex" in f.why]
    assert [f.severity for f in findings] == ([severity] if severity else [])
    assert all(("up to megatron-core 0.16" in f.message) == (severity == "note") for f in findings)


def test_the_pin_is_named_as_what_shows_the_version() -> None:
    reason = lint(f"pip install megatron-core==0.17.0\n{COMMAND}", "x.sh").dialect_reason
    assert "0.17.0, by megatron-core==0.17.0" in reason
