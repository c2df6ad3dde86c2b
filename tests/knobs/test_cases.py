"""Small inputs after public reports: what is true of each is told."""

from __future__ import annotations

import pytest

from perfdoc.knobs.lint.finding import Finding
from perfdoc.knobs.lint.text import lint
from tests.conftest import ROOT

CASES = ROOT.parent / "shared" / "cases"
TOLD = {
    "01-maxconn-dp/a_tp1.sh": {"one-queue-against-gradient-overlap"},
    "01-maxconn-dp/j_dp64.sh": {"one-queue-against-gradient-overlap"},
    "01-maxconn-dp/g_verl_fsdp.sh": {"one-queue-against-fsdp"},
    "03-ds-stage0-overlap/ds.json": {"overlap-needs-zero"},
    "05-ds-tiny-buckets/ds.json": {
        *("zero-reduce-bucket-size-far-too-small", "zero-allgather-bucket-size-far-too-small")
    },
    "06-vpp-layers/a.sh": {"layers-over-virtual-stages"},
    "06-vpp-layers/b.sh": {"layers-over-stages"},
    "09-bridge-ep-overlap-constraints/a.yaml": {
        *("ep-overlap-excludes-moe-recompute", "ep-overlap-excludes-shared-overlap", "ep-overlap-mtp")
    },
    "20-hf-fsdp-gc/a.sh": {"checkpointing-outside-fsdp"},
    "20-hf-fsdp-gc/c.yaml": {"no-prefetch-exposes-gathers"},
    "21-bridge-cpu-offload/a.yaml": {"offload-of-nothing"},
    "22-cuda-graph-scope/g_bridge_rng.yaml": set(),
    "25-titan-float8/b.sh": set(),
    "26-verl-batch/a_dyn.sh": {"verl-max-tokens-needs-dynamic-batches"},
    "27-zero3-one-gpu/acc.yaml": {"zero-3-on-one-process"},
    "28-maxconn-python/c.sh": {"fsdp-needs-several-queues"},
    "28-maxconn-python/d.sh": {"fsdp-needs-several-queues"},
    "37-fp8-no-bf16/a.sh": {"fp8-without-bf16"},
}
"""File → rules that errors and warnings name; for none, nothing is said at all but notes."""


def of(file: str) -> tuple[Finding, ...]:
    if not (CASES / file).is_file():
        pytest.skip("the cases (../shared/cases beside the repository) are not here")
    return lint((CASES / file).read_text(), file.rpartition("/")[2]).findings


@pytest.mark.parametrize("file", TOLD)
def test_what_is_true_of_a_public_report_is_told(file: str) -> None:
    rules = {f.why.rpartition("(")[2].removesuffix(")") for f in of(file) if f.severity != "note"}
    assert rules == TOLD[file]


def test_float8_on_the_command_line_needs_the_compiler() -> None:
    file = CASES / "25-titan-float8" / "b.sh"
    if not file.is_file():
        pytest.skip("the cases (../shared/cases beside the repository) are not here")
    without = lint(file.read_text().replace("--training.compile", ""), "b.sh")
    assert (without.dialect, [f.code for f in without.findings]) == ("torchtitan", ["PL303"])
    assert "compile.enable" in without.findings[0].instead


def test_the_usual_size_of_a_bucket_is_named() -> None:
    assert all("5e8 are usual" in f.message for f in of("05-ds-tiny-buckets/ds.json"))
