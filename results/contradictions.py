"""Settings that the capture shows otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """One fact of the job as it was given and as it was captured."""

    fact: str
    """Field of Job, or a setting's id."""
    given: str
    given_by: str
    """Who said so: `--config FILE`, `--set`, `derived`; empty unknown."""
    captured: str
    evidence: str
    """What in the capture shows it."""
    settings: list[str]
    """Ids of the settings that count as unknown for it."""


def in_words(found: Sequence[Contradiction]) -> str:
    """`tp 4 (--config job.yaml), but 8 in the process group TENSOR_MODEL_PARALLEL_GROUP`, each."""
    return "; ".join(
        f"{c.fact} {c.given}{f' ({c.given_by})' if c.given_by else ''}, but {c.captured} {c.evidence}"
        for c in found
    )
