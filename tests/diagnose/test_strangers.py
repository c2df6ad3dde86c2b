"""What is said of captures of strangers (../shared/traces/strangers), by what their README publishes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.reports.screen import LINES, render_screen
from perfdoc.results import Diagnosis
from perfdoc.rules.facts.exposed import server_link
from tests import shown_screens
from tests.conftest import SHARED_TRACES

STRANGERS = SHARED_TRACES / "strangers"
NAMES = (
    *("ddp_resnet_4gpu_rocm_one_file", "ddp_resnet_mi300x_rank0of8", "megatron_gpt_forward_tp8_a100"),
    *("resnet50_fp32_v100", "resnet_rtx2080ti_loader_workers"),
)
VENDOR = re.compile(r"nsys|CUDA_|cudaProfiler|enable_cuda_sync_events")


@cache
def of(name: str) -> Diagnosis:
    found = sorted(STRANGERS.glob(f"{name}*"))
    if not found:
        pytest.skip("the captures of strangers (../shared/traces beside the repository) are not here")
    files = sorted(found[0].iterdir()) if found[0].is_dir() else found
    return analysed(AnalysisRequest(captures=tuple(files), jobs=1)).diagnosis


def screen(name: str) -> str:
    """In one line, so that a width breaks no phrase."""
    return " ".join(render_screen(of(name), report="x").split())


def numbers(text: str) -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(r"[\d,]*\.?\d+", text)]


@pytest.mark.parametrize("name", NAMES)
def test_a_screen_has_its_parts_in_order(name: str) -> None:
    text = render_screen(of(name), report="x")
    assert text.count("\n") <= LINES
    places = [text.index(word) for word in ("Why: ", "Next", "[C", "Step time ", "Report: x")]
    assert places == sorted(places)
    assert "PD" in text[places[1] : places[2]]


def test_the_late_gpu_of_the_amd_job_is_named() -> None:
    """GPU 5 is last in 21 of 21 collectives; what the others wait for it is no prediction."""
    said = of("ddp_resnet_4gpu_rocm_one_file")
    assert said.verdict.startswith("GPU 5 is launched late by its host process")
    assert numbers(said.why)[1:4] == [100, 15, 25]  # per cent of the collectives, and expected by chance
    text = screen("ddp_resnet_4gpu_rocm_one_file")
    assert "HIP graphs" in text
    assert not VENDOR.search(text)
    assert [r.gpu.name for r in said.ranks] == [None] * 4


def test_rccls_generic_kernels_are_two_all_reduces() -> None:
    """6.8 and 8.9 ms for 5.7 and 17.6 MB: 15.7 ms, of which 11.8 ms are not hidden, of 19.0 ms."""
    said = of("ddp_resnet_mi300x_rank0of8")
    assert numbers(said.verdict) == [11.8, 18.8, 62.4]
    assert "DP communication" in said.verdict
    assert said.why.startswith("Mostly all-reduce: 2 a step")
    assert "0.6 % of a server's 448 GB/s" in said.why  # 2.6 GB/s; the trace names no host
    assert server_link("AMD Instinct MI300X", 2) == ("Infinity Fabric", 64)  # each pair has one of the seven
    assert server_link("NVIDIA A100-SXM4-80GB", 0) is None  # nobody says how many ranks the job has
    assert server_link("AMD Instinct MI300A", 8) is server_link("NVIDIA H800", 8) is None
    assert server_link("AMD Instinct MI300X", 16) is server_link("NVIDIA GeForce RTX 3090", 2) is None
    assert server_link("NVIDIA A100-SXM4-80GB", 8) == ("NVLink", 300)
    text = screen("ddp_resnet_mi300x_rank0of8")
    assert "AMD Instinct MI300X" in text
    assert "bucket_cap_mb=3" in text  # of 22.2 MiB an eighth
    assert "First: capture all 8 ranks" in text
    assert "Next, if it is transfer: PD101" in text
    assert not VENDOR.search(text)


def test_the_late_hosts_of_the_forward_are_named() -> None:
    """Ranks 0 and 6 are last in 60 of 84, by gaps of their hosts and not by compute."""
    said = of("megatron_gpt_forward_tp8_a100")
    assert said.verdict.startswith("6 ranks wait in TP all-reduce for ranks 0 and 6, ")
    assert "in gaps between kernels" in said.why
    before, measured, after = numbers(said.why.split("Simulated: ")[1])[:3]
    assert after < before < measured <= 631
    tp = [row for rank in said.ranks for row in rank.communication if row.dimension == "tp"]
    assert {sum(r.count for r in rank.communication if r.dimension == "tp") for rank in said.ranks} == {84}
    assert len(tp) >= 8


def test_hosts_a_little_late_do_not_lead_where_all_ranks_are_launch_bound(shared_traces: Path) -> None:
    """Idle host is 49 % of the step over all 8 ranks; three hosts that are late cost 12 % of it."""
    ranks = sorted(shared_traces.glob("kineto/dlrm_8gpu_v100_rank*"))
    said = analysed(AnalysisRequest(captures=tuple(ranks), jobs=1)).diagnosis
    assert "launch-bound" in said.verdict
    assert any(rule.code == "PD303" and rule.state == "fires" for rule in said.rules)


def test_a_v100_is_offered_fp16_and_its_prediction_is_on_the_screen() -> None:
    """FP32 convolutions are 188 of 468 ms; a V100 multiplies fp16, and no bf16."""
    text = screen("resnet50_fp32_v100")
    assert numbers(of("resnet50_fp32_v100").verdict)[:2] == [97.5, 96]
    assert "PD407" in text
    rule = next(r for r in of("resnet50_fp32_v100").rules if r.code == "PD407")
    assert rule.state == "fires"
    assert "fp16" in rule.remedy
    assert "no bf16" in rule.remedy


def test_a_loader_with_workers_is_not_told_to_take_workers() -> None:
    """30 calls of a loader with worker processes take 8.2 s of 14.5 s; what they would gain is a bound."""
    said = of("resnet_rtx2080ti_loader_workers")
    assert "the GPU waits for the next batch" in said.verdict
    text = screen("resnet_rtx2080ti_loader_workers")
    next_thing = text[text.index("Next: ") :]
    assert "Make the loader's workers faster" in next_thing
    assert "at most" in next_thing[: next_thing.index("upper bound")]
    assert "num_workers" not in text


def test_the_page_of_first_screens_has_all_strangers_and_damaged_cases() -> None:
    text = shown_screens.FIRST.read_text(encoding="utf-8")
    shown = " ".join(shown_screens.commands(shown_screens.FIRST))
    assert all(f"captures/strangers/{name}" in shown for name in NAMES)
    assert all(f"cases/{n}-" in shown for n in (10, 11, 12, 13, 14, 16, 36))
    for block in re.findall(r"```\n\$ perfdoc [^\n]*\n(.*?)```", text, re.DOTALL):
        assert 8 < block.count("\n") <= LINES


@pytest.mark.slow
def test_first_screens_are_what_the_command_prints() -> None:
    if not SHARED_TRACES.is_dir():
        pytest.skip("the shared captures are not beside the repository")
    assert shown_screens.first_screens() == shown_screens.FIRST.read_text(encoding="utf-8"), "make docs"
