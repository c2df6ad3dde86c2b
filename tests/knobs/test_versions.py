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
