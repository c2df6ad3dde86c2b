"""Settings of tuning guides and public configurations: their mistakes are found, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdoc.knobs.knob import Dialect
from perfdoc.knobs.lint.finding import Finding, Report
from perfdoc.knobs.lint.text import lint
from tests.conftest import ROOT

SEEDS = ROOT.parent / "shared" / "seeds"
_SETTING = re.compile(r"[A-Za-z_][\w.]*\s*=.*")


def guide(number: str) -> str:
    found = sorted(SEEDS.glob(f"{number}_*.txt"))
    if not found:
        pytest.skip("the guides (../shared/seeds beside the repository) are not here")
    return Path(found[0]).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def settings(text: str) -> Iterator[str]:
    """Every setting that a guide shows in line, with its placeholders filled as a reader would."""
    outside = re.sub(r"```\w*\n.*?```|<!--.*?-->", "", text, flags=re.S)
    for line in outside.splitlines():
        shown = re.findall(r"`([A-Za-z_][\w.]*=[^`]*)`", line)
        if not shown and _SETTING.fullmatch(line.strip()):
            shown = [line.strip()]
        if not shown:
            shown = re.findall(r"NVTE_\w+=\d", line)
        for setting in shown:
            # Only bytes stay: what a placeholder says of the unit is a mistake to be found.
            filled = setting if "bytes" in setting else re.sub(r"=\s*<[^>]*>?", "=4", setting)
            yield filled.replace("”", '"').replace("cp_comm_type=4", "cp_comm_type=p2p")


def found_in(text: str, dialect: Dialect) -> dict[str, list[Finding]]:
    """Setting → findings, each linted by itself: a guide lists alternatives, not one job."""
    report = {}
    for setting in settings(text):
        findings = lint(setting, "x.args", dialect=dialect).findings
        report[setting] = [f for f in findings if f.severity != "note"]
    return report


def codes(report: dict[str, list[Finding]]) -> dict[str, list[str]]:
    return {setting: [f.code for f in findings] for setting, findings in report.items() if findings}


def test_the_guide_for_megatron_bridge() -> None:
    report = found_in(guide("000"), "megatron_bridge")
    assert len(report) > 45
    assert codes(report) == {
        "GPTProvider.account_for_embedding_in_pipeline_split=true": ["PL103"],
        "GPTProvider.account_for_loss_in_pipeline_split=true": ["PL103"],
        "GPTProvider.cross_entropy_loss_fusion=true": ["PL103"],
        "GPTProvider.gradient_accumulation_fusion=true": ["PL103"],
        "TPOverlapCfg.num_sm=4": ["PL103"],
        "TPOverlapCfg.cga_size=4": ["PL103"],
        "TPOverlapCfg.num_split=4": ["PL101"],
        "TPOverlapCfg.fp8_buf=true": ["PL103"],
        "DistributedDataParallelConfig.bucket_size=<int: bytes>": ["PL202"],
        "TransformerConfig.enable_cuda_graph=true": ["PL102"],
        "TransformerConfig.recompute_granuality=full": ["PL101"],
    }
    (misspelt,) = report["TransformerConfig.recompute_granuality=full"]
    assert misspelt.instead == "model.recompute_granularity=full"
    (renamed,) = report["TransformerConfig.enable_cuda_graph=true"]
    assert renamed.instead == "model.cuda_graph_impl=local"


def test_the_guide_for_nemo() -> None:
    report = found_in(guide("001"), "nemo")
    assert len(report) > 45
    assert codes(report) == {
        "recipe.trainer.use_distributed_optimizer=true": ["PL103"],
        "TransformerLayerTPOverlapCfg.num_sm=4": ["PL103"],
        "TransformerLayerTPOverlapCfg.cga_size=4": ["PL103"],
        "TransformerLayerTPOverlapCfg.num_split=4": ["PL101"],
        "TransformerLayerTPOverlapCfg.fp8_buf=true": ["PL103"],
        "recipe.trainer.strategy.ddp.num_distributed_optimizer_instances=4": ["PL305"],
        "recipe.trainer.strategy.ddp.bucket_size=<int: bytes>": ["PL202"],
        "MegatronMixedPrecision.fp8_params=true": ["PL102"],
        "recipe.model.config.recompute_granuality=full": ["PL101"],
        "recipe.model.config.use_precision_aware_optimizer=True": ["PL103"],
        "recipe.model.config.fp8_param_gather=True": ["PL103"],
        "NVTE_FLASH_ATT=1": ["PL101"],
        "NVTE_FLASH_ATT=0": ["PL101"],
        "NVTE_FUSED_ATT=1": ["PL101"],
    }
    (misspelt,) = report["NVTE_FLASH_ATT=0"]
    assert misspelt.instead == "NVTE_FLASH_ATTN=0"
    (misplaced,) = report["recipe.model.config.use_precision_aware_optimizer=True"]
    assert misplaced.instead == "recipe.optim.config.use_precision_aware_optimizer=true"


def test_the_profiler_of_that_guide() -> None:
    (shown,) = [s for s in re.findall(r"`(ProfilingConfig\(.*?\))`", guide("000")) if "nsys" in s]
    call = re.sub(r"<[^>]*>", "[0]", shown.replace("<[0,...]>", "[0]")).replace("=[0],", "=4,")
    findings = lint(call, "x.py", dialect="megatron_bridge").findings
    assert {(f.code, f.instead) for f in findings} == {
        ("PL101", "profiling.profile_step_start=4"),
        ("PL101", "profiling.profile_step_end=4"),
    }


def test_the_template_of_the_guide_for_megatron_lm() -> None:
    (template,) = blocks(guide("003"), "python")
    report = lint(template, "template.py")
    assert report.dialect == "megatron_core"
    lines = template.splitlines()
    found = {(f.code, f.severity, lines[f.line - 1].split("=")[0].strip()) for f in report.findings}
    assert found == {
        ("PL202", "warning", "bucket_size"),  # 40 M elements are not the 40 MB that its remark says
        ("PL105", "note", "data_parallel_size"),  # what the other degrees leave
        ("PL302", "warning", "recompute_method"),  # with selective recomputation
        ("PL101", "error", "cuda_graph"),  # no such field
    }
    assert report.values["pipeline_model_parallel_size"] == 8


def test_the_guide_for_verl_misspells_one_name() -> None:
    words = set(re.findall(r"^- \W*([a-z]+_[a-z_]+)\b", guide("004"), re.M))
    assert len(words) > 15
    place = "actor_rollout_ref.actor.megatron.override_transformer_config"
    misspelt = {}
    for word in sorted(words):
        findings = lint(f"+{place}.{word}=x", "x.args", dialect="verl").findings
        misspelt |= {f.key.rpartition(".")[2]: f.knob for f in findings if f.code == "PL101"}
    assert misspelt == {"moe_group_gemm": "moe_grouped_gemm"}


_FOLDER = Path(__file__).with_name("corpus")
_DIALECT = {"torchtitan": "torchtitan", "verl": "verl", "megatron_lm": "megatron_lm"} | {
    "megatron_bridge": "megatron_bridge"
}
"""By file of the corpus; the others name it for each case."""


def cases() -> Iterator[Any]:
    for path in sorted(_FOLDER.glob("*.yaml")):
        for case in yaml.safe_load(path.read_text(encoding="utf-8")):
            of_file = _DIALECT.get(path.stem) or case.get("dialect")
            of_file = of_file or ("deepspeed" if case["file"] == "a.json" else "accelerate")
            yield pytest.param(case, of_file, id=case["source"].rpartition("/")[2])


def found(report: Report) -> list[str]:
    return sorted(f"{f.code} {f.knob}" for f in report.findings)


@pytest.mark.parametrize(("case", "dialect"), [*cases()])
def test_public_configurations(case: dict[str, Any], dialect: str) -> None:
    report = lint(case["text"], case["file"])
    assert report.dialect == dialect
    assert found(report) == sorted(case["finds"])
    lines = case["text"].split("\n")
    for finding in report.findings:
        assert finding.key.rpartition(".")[2] in lines[finding.line - 1], "the line that is blamed holds it"


@pytest.mark.parametrize(("case", "dialect"), [*cases()])
def test_planted_mistakes(case: dict[str, Any], dialect: str) -> None:
    assert case["planted"]
    for planted in case["planted"]:
        assert planted["put"] in case["text"], planted
        text = case["text"].replace(planted["put"], planted["with"], 1)
        assert planted["finds"] not in case["finds"] or len(found(lint(text, case["file"]))) != len(
            case["finds"]
        )
        assert planted["finds"] in found(lint(text, case["file"])), planted


def test_the_corpus_is_large_enough() -> None:
    sources = [case.values[0]["source"] for case in cases()]
    assert len(sources) == len(set(sources)) >= 150
