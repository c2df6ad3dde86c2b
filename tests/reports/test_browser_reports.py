"""Whole reports as `perfdoc analyze` writes them, in the browser: real traces, a simulated job, a CPU run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.running import SMALL, needs_training
from tests.command import perfdoc
from tests.planted.job import JobSpec, planted_job
from tests.reports.browser import NARROW, visit
from tests.reports.figures import allowed_figures, figures_of, shown_wrongly, units_of_columns
from tests.reports.page import Page
from tests.reports.test_browser_axe import violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DEFAULT = ("nsys/cuda_graph_a100.sqlite",)
SLOW = (
    *("nsys/ddp_2gpu_rtx3090.sqlite", "nsys/sp_2gpu_before.sqlite"),
    *("nsys/host_bound_2gpu_h100.sqlite", "nsys/windows_rtx5000.sqlite"),
    *("nsys/gpt_small_full_step_a100.sqlite", "nsys/gpt_fwd_bwd_rtx3070ti_sched.sqlite"),
    "kineto/dlrm_8gpu_v100_rank*.json.gz",
    "kineto/ddp_nccl_metadata_a100_rank0of2.json.gz",
    *("kineto/dlrm_layernorm_a100_rank3of8.json.gz", "kineto/vllm_moe_tp8_b200_rank0.json.gz"),
    *("kineto/cuda_event_sync_multi_stream.json.gz", "kineto/resnet50_num_workers_0_v100.pt.trace.json.gz"),
)


def _analyze(paths: Sequence[Path | str], out: Path, *options: str) -> None:
    done = perfdoc("analyze", *paths, "-o", out, *options)
    assert done.returncode == 0, done.stderr


def _worst_instances(serial: dict[str, Any]) -> set[str]:
    """What diagnosis.json says of the worst instance of each rule."""
    return {" ".join(rule["worst"]["says"].split()) for rule in serial["rules"] if rule["worst"] is not None}


def _check(browser: Browser, folder: Path, scratch: Path) -> None:
    """No word on the console, nothing fetched, every figure as diagnosis.json has it, nothing serious for a
    checker of accessibility, nothing wider than a narrow screen."""
    html = (folder / "report.html").read_text(encoding="utf-8")
    serial = json.loads((folder / "diagnosis.json").read_bytes())
    page = Page(html)
    assert page.problems == []
    allowed, units = allowed_figures(serial), units_of_columns(page)
    figures = list(figures_of(page))
    assert len(figures) > 20
    foreign = [
        (e.text[:40], e.attributes["data-ns"]) for e in figures if int(e.attributes["data-ns"]) not in allowed
    ]
    assert foreign == []
    cells = [e for e in figures if e.tag in ("td", "th")]
    assert [wrong for e in cells if (wrong := shown_wrongly(e, units.get(id(e))))] == []
    with visit(browser, scratch, html) as seen:
        assert seen.page.locator("#ledger-sum").get_attribute("data-ns") == str(
            sum(rank["window"]["duration_ns"] for rank in serial["ranks"])
        )
        seen.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        text = " ".join(seen.page.locator("body").inner_text().split())
        assert {said for said in _worst_instances(serial) if said not in text} == set()
        assert violations(seen.page) == []
        seen.page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
        assert seen.page.evaluate("document.documentElement.scrollWidth") == NARROW[0]
        # Nothing that would be cut or lie on its neighbours.
        assert seen.page.locator(".rank .letter:visible, #ledger-sum:visible").count() == 0
        if len(serial["ranks"]) == 1:
            assert seen.page.evaluate("((e) => e.scrollWidth <= e.clientWidth)(ledger.parentElement)")
        seen.assert_quiet()


@pytest.mark.parametrize("trace", [*DEFAULT, *(pytest.param(t, marks=pytest.mark.slow) for t in SLOW)])
def test_real_traces(browser: Browser, shared_traces: Path, tmp_path: Path, trace: str) -> None:
    paths = sorted(shared_traces.glob(trace))
    assert paths
    _analyze(paths, tmp_path / "out")
    _check(browser, tmp_path / "out", tmp_path)


@pytest.mark.slow
def test_a_job_of_16_ranks(browser: Browser, tmp_path: Path) -> None:
    job = planted_job(JobSpec(tp=2, pp=2, dp=4, micro_batches=2, steps=2, data_ns=2_150_000))
    paths = job.write(tmp_path / "traces")
    _analyze(paths, tmp_path / "out", "--set", "tp=2", "pp=2", "dp=4", "gbs=8", "seq=4096")
    _check(browser, tmp_path / "out", tmp_path)
    page = Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    ranks = [e for e in page.elements if e.attributes.get("class") == "rank" and "time" in e.inside]
    assert len(ranks) == 16


@pytest.mark.slow
def test_a_job_of_32_ranks_is_shown_by_role(browser: Browser, tmp_path: Path) -> None:
    job = planted_job(JobSpec(tp=2, pp=2, dp=8, micro_batches=2, steps=2))
    paths = job.write(tmp_path / "traces")
    _analyze(paths, tmp_path / "out", "--set", "tp=2", "pp=2", "dp=8", "gbs=16", "seq=4096")
    _check(browser, tmp_path / "out", tmp_path)
    page = Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    rows = [[cell.text for cell in row.children][:2] for row in page.within("roles", "tr")]
    assert [row for row in rows if row and row[0].startswith("stage")] == [
        ["stage 0, embedding", "16"],
        ["stage 1, loss", "16"],
    ]


@pytest.mark.slow
def test_a_run_of_the_trainer_on_the_cpu(browser: Browser, tmp_path: Path) -> None:
    needs_training()
    command = [sys.executable, "-m", "perfdoc", "run", *SMALL, "-o", str(tmp_path / "run")]
    subprocess.run(command, check=True, capture_output=True, timeout=600, cwd=tmp_path)
    _check(browser, tmp_path / "run" / "report", tmp_path)


def test_the_check_of_figures_sees_a_wrong_one() -> None:
    serial = {
        "analyses": {"kernels": {"classes": [], "top": []}},
        "a": [{"x": "p", "n": 1}, {"x": "p", "n": 2}],
    }
    assert {1, 2, 3} <= allowed_figures(serial)
    assert 4 not in allowed_figures(serial)
    html = (
        "<table><tr><th>time ms</th><th>mean</th></tr>"
        '<tr><td data-ns="1234567">1.235</td><td data-ns="1234567">1.234 ms</td></tr></table>'
    )
    page = Page(html)
    units = units_of_columns(page)
    good, bad = figures_of(page)
    assert shown_wrongly(good, units.get(id(good))) == ""
    assert shown_wrongly(bad, units.get(id(bad))) == "1234567 is shown as 1.234 ms"
