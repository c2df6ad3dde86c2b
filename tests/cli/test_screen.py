"""What `perfdoc analyze` prints: the first screen, all of it with --full, one line with --brief."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.reports.llm import render_llm
from perfdoc.reports.screen import COLUMNS, LINES
from perfdoc.results import from_json
from perfdoc.results.names import columns
from tests.amount import some
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.cli.test_terminal_width import shown
from tests.command import perfdoc
from tests.planted.capture import write_capture
from tests.reports.test_screen import assert_fits


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("screen"))


def test_one_screen_all_of_it_or_one_line(capture: Path, tmp_path: Path) -> None:
    screens = {
        amount: perfdoc("analyze", capture, "-o", "out", "--force", "--no-replay", *words, cwd=tmp_path)
        for amount, words in {"screen": (), "full": ("--full",), "brief": ("--brief",)}.items()
    }
    assert {done.returncode for done in screens.values()} == {0}
    lines = {amount: done.stdout.splitlines() for amount, done in screens.items()}
    assert len(lines["screen"]) < LINES < len(lines["full"])
    assert len(lines["brief"]) == 1
    assert lines["screen"][-1] == "Report: out/report.html"
    assert lines["brief"][0].endswith("; out/report.html")
    # Nobody reads both streams here: each says where the report is.
    assert all("wrote out/report.html" in done.stderr for done in screens.values())
    explicit = perfdoc("analyze", capture, "-o", "out2", "--no-replay", "--format", "text", cwd=tmp_path)
    assert explicit.stdout.replace("out2", "out") == screens["screen"].stdout


def test_the_text_for_a_language_model_is_the_diagnosis(capture: Path, tmp_path: Path) -> None:
    words = ("-o", "out", "--no-replay", "--format", "llm")
    done = perfdoc("analyze", capture, *words, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == render_llm(from_json((tmp_path / "out" / "diagnosis.json").read_bytes()))
    refused = perfdoc("analyze", capture, "--full", "--format", "llm", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")


@pytest.mark.parametrize(
    "words", [("--full", "--brief"), ("--full", "--format", "junit"), ("--brief", "--format", "json")]
)
def test_what_goes_not_together_is_one_line(capture: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = perfdoc("analyze", capture, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert not (tmp_path / "perfdoc-report").exists()


@pytest.mark.parametrize(("width", "most"), some([(60, 60), (200, COLUMNS)], []))
def test_it_is_as_wide_as_the_terminal_up_to_80(capture: Path, tmp_path: Path, width: int, most: int) -> None:
    lines = shown(width, "analyze", capture, "-o", tmp_path, "--force", "--no-replay")
    report = f"Report: {tmp_path}/report.html"
    assert max(columns(line) for line in lines if line != report) <= most
    assert {len(line) for line in lines if line.startswith("[")} == {most}
    assert not [line for line in lines if "\x1b" in line]  # NO_COLOR


DEFAULT = ("nsys/windows_rtx5000.sqlite",)
TRACES = (
    *DEFAULT,
    *("nsys/host_bound_2gpu_h100.sqlite", "kineto/dlrm_8gpu_v100_rank*.json.gz"),
    *("nsys/ddp_2gpu_rtx3090.sqlite", "nsys/sp_2gpu_before.sqlite", "nsys/sp_2gpu_after.sqlite"),
    *("nsys/cuda_graph_a100.sqlite", "nsys/gpt_small_full_step_a100.sqlite"),
    *("nsys/gpt_small_fwd_bwd_a100.sqlite", "nsys/gpt_fwd_bwd_rtx3070ti_sched.sqlite"),
    *("kineto/ddp_nccl_metadata_a100_rank0of2.json.gz", "kineto/dlrm_layernorm_a100_rank3of8.json.gz"),
    *("kineto/vllm_moe_tp8_b200_rank0.json.gz", "kineto/cuda_event_sync_multi_stream.json.gz"),
    "kineto/resnet50_num_workers_0_v100.pt.trace.json.gz",
    "kineto/resnet50_num_workers_4_v100.pt.trace.json.gz",
)


@pytest.mark.parametrize("name", some(TRACES, DEFAULT))
def test_real_traces_have_a_first_screen(shared_traces: Path, tmp_path: Path, name: str) -> None:
    paths = sorted(shared_traces.glob(name))
    done = perfdoc("analyze", *paths, "-o", "perfdoc-report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = from_json((tmp_path / "perfdoc-report" / "diagnosis.json").read_bytes())
    assert_fits(made, done.stdout)


@pytest.mark.slow
def test_the_demo_has_a_first_screen(tmp_path: Path) -> None:
    assert perfdoc("demo", cwd=tmp_path).returncode == 0
    done = perfdoc("analyze", "demo/traces", "--config", "demo/job.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_fits(from_json((tmp_path / "perfdoc-report" / "diagnosis.json").read_bytes()), done.stdout)


def test_ranks_stand_in_the_order_of_their_files(tmp_path: Path) -> None:
    """A shell expands rank*.sqlite to 0, 1, 10, 2, and these captures do not number their ranks."""
    files = []
    for i in (0, 1, 10, 2):
        builder = TimelineBuilder()
        builder.process().device().kernel("gemm", 0, 1_000 + i)
        files.append(write_nsys_sqlite(builder.build(), tmp_path / f"rank{i}.sqlite"))
    done = perfdoc("analyze", *files, "--json", tmp_path / "made.json", "--no-replay")
    assert done.returncode == 0, done.stderr
    made = from_json((tmp_path / "made.json").read_bytes())
    assert [rank.window.duration_ns - 1_000 for rank in made.ranks] == [0, 1, 2, 10]
