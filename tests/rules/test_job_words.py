"""Rules speak of settings in the words of the job's framework: each on the example that it fires on."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.load import catalogue
from perfdoc.results.headline import Framework
from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.job_words import in_job_words, plain_words
from perfdoc.rules.engine.rule import Verdict
from tests.rules.examples import examples
from tests.rules.judged import run_rules

PYTORCHS = {"record_shapes"}
"""A name of PyTorch's own profiler."""
KNOBS = re.compile(
    r"(?<![\w./-])("
    + "|".join(sorted((k for k in catalogue() if "_" in k), key=len, reverse=True))
    + r")(?!\w)"
)


def texts(found: RuleResult) -> str:
    said = [found.reason, found.remedy, found.action, found.verify, found.false_alarm]
    return " ".join([*said, *(f"{e.label} {e.value}" for e in found.evidence)])


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "vllm", ""])
def test_no_rule_speaks_megatron_in_another_job(tmp_path: Path, framework: Framework) -> None:
    fired = set()
    for code, example in examples().items():
        (folder := tmp_path / code).mkdir()
        case = example.case(folder)
        captures = [replace(capture, framework=framework) for capture in case.captures]
        if not captures:
            continue
        job = replace(case, captures=captures, configuration=Configuration(values={}, dialect=None))
        for found in run_rules(job):
            if found.state != "fires":
                continue
            fired.add(found.code)
            said = {
                k for k in KNOBS.findall(texts(found)) if framework or f"Megatron's {k}" not in texts(found)
            }
            assert said <= PYTORCHS, (found.code, said)
            for piece in found.advice:
                assert piece.forbidden or not framework or {*piece.dialects} <= {framework, "env"}, found.code
    assert len(fired) > 20


@pytest.mark.parametrize(
    ("text", "plain", "example"),
    [
        (
            "tp_comm_overlap is on. Use it (cp_comm_type p2p).",
            "Overlap of TP communication with its GEMMs is on. "
            "Use it (the scheme of context parallelism p2p).",
            "Overlap of TP communication with its GEMMs (Megatron's tp_comm_overlap) is on. "
            "Use it (Megatron's cp_comm_type p2p).",
        ),
        (
            "profile(record_shapes=True), a_b, bucket_size_of",
            *["profile(record_shapes=True), a_b, bucket_size_of"] * 2,
        ),
        ("the scheme (cp_comm_type)", "the scheme", "the scheme (Megatron's cp_comm_type)"),
        (
            "small (manual_gc is 1, and 4 fit)",
            "small (manual gc is 1, and 4 fit)",
            "small (Megatron's manual_gc is 1, and 4 fit)",
        ),
        (
            "in attend (sequence_parallel.py), sequence_parallel (net/m.py)",
            *["in attend (sequence_parallel.py), sequence_parallel (net/m.py)"] * 2,
        ),
        ("see manual_gc", "see manual gc", "see manual gc (Megatron's manual_gc)"),
    ],
)
def test_the_words(text: str, plain: str, example: str) -> None:
    assert (plain_words(text), plain_words(text, example=True)) == (plain, example)


def test_values_of_evidence_stay() -> None:
    value = "sequence_parallel (net/m.py), manual_gc"
    said = in_job_words(
        "pytorch", Verdict(state="fires", reason="manual_gc", evidence=[("scheme (cp_comm_type)", value)])
    )
    assert said.reason == "Manual gc"
    assert said.evidence == [("scheme", value)]
