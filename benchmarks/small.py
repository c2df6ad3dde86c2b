"""Small captures: the CPU time of `perfdoc analyze` beside that of the tools that answer similar questions.

    python benchmarks/small.py [--rounds 5] [--perfdoc REVISION] [--baseline REVISION] [--only NAME,NAME]

Every tool reads a copy of its own of the same file in the same round, in turn, in a fresh process: nsys-ai
writes indexes into what it reads. A first round is not counted, so those are there. Figures are medians with
the smallest and largest. Every tool is in an environment of its own under benchmarks/data, as `pip install`
makes it for a user: nsys-ai, HTA, and a perfdoc that is named by its revision. A path to a `perfdoc` is taken
as it is. Where that cannot be done, where a tool fails on a file or does not end, the row says so.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from statistics import median

# Standard library only in this process, which all that is measured is forked from.
HERE = Path(__file__).resolve().parent
TRACES = HERE.parents[1] / "shared" / "traces"
PACKAGES = {"nsys-ai": "nsys-ai", "HTA": "HolisticTraceAnalysis"}
_NSYS = (
    *("cuda_graph_a100", "ddp_2gpu_rtx3090", "gpt_fwd_bwd_rtx3070ti_sched", "gpt_small_fwd_bwd_a100"),
    *("gpt_small_full_step_a100", "host_bound_2gpu_h100", "sp_2gpu_after", "sp_2gpu_before"),
    "windows_rtx5000",
)
_KINETO = {
    "ddp_nccl_metadata": "kineto/ddp_nccl_metadata_a100_rank0of2.json.gz",
    "dlrm": "kineto/dlrm_8gpu*.json.gz",
    "resnet50_workers_0": "kineto/resnet50_num_workers_0_v100.pt.trace.json.gz",
    "vllm": "kineto/vllm_moe_tp8_b200_rank0.json.gz",
    "bert_small": "shapes/bert_small_forward_h100.json.gz",
    "normalization": "shapes/normalization_layers.json.gz",
    "megatron_tp8": "strangers/megatron_gpt_forward_tp8_a100/*.json.gz",
    "resnet50_fp32": "strangers/resnet50_fp32_v100.json.gz",
    "loader_workers": "strangers/resnet_rtx2080ti_loader_workers.json.gz",
    "cuda_event_sync": "kineto/cuda_event_sync_multi_stream.json.gz",
}
_AIMS = {"gpt_small_full_step_a100": 0.33}
CAPTURES = {
    **{name: (f"nsys/{name}.sqlite", "nsys-ai", _AIMS.get(name, 0.5)) for name in _NSYS},
    **{name: (pattern, "HTA", 0.5) for name, pattern in _KINETO.items()},
}
"""Every export below 5 MB and every trace below 30 MB of JSON that the peer reads: files, the peer, and the
part of the baseline that is aimed at. HTA fails on qwen15_05b_forward_h100, ddp_resnet_mi300x_rank0of8 and
resnet50_num_workers_4_v100; neither tool finds GPU rows in cpu_only."""
OF_PEER = 0.8
AT_MOST_S = 60
"""For one command: nsys-ai does not end in some rounds on gpt_small_fwd_bwd_a100."""
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={i: path for i, path in enumerate(sys.argv[1:])}, trace_dir="")
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
"""


def installed(peer: str) -> tuple[str, str]:
    """(the bin folder of an environment with the peer, "") or ("", why there is none)."""
    folder = HERE / "data" / f"env-{PACKAGES[peer].lower()}"
    if not (folder / "installed").exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
            pip = [str(folder / "bin" / "pip"), "install", "-q", PACKAGES[peer]]
            subprocess.run(pip, check=True, capture_output=True, text=True, timeout=900)
        except (subprocess.SubprocessError, OSError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            return "", f"not installed: {said[-1][:120] if said else error}"
        (folder / "installed").touch()
    return str(folder / "bin"), ""


def perfdoc_of(named: str) -> str:
    """The command of a revision, installed as a user does; a path as it is. Raises CalledProcessError."""
    if Path(named).exists():
        return named
    git = ["git", "-C", str(HERE)]
    revision = subprocess.run(
        [*git, "rev-parse", "--short=8", f"{named}^{{commit}}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    folder = HERE / "data" / f"env-perfdoc-{revision}"
    if not (folder / "installed").exists():
        archive = folder.with_suffix(".tar.gz")
        archive.parent.mkdir(exist_ok=True)
        top = ["git", "-C", str(HERE.parent)]
        subprocess.run([*top, "archive", "--prefix=perfdoc/", "-o", str(archive), revision], check=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "-q", str(archive)], check=True)
        archive.unlink()
        (folder / "installed").touch()
    return str(folder / "bin" / "perfdoc")


def cpu_s(command: Sequence[str], folder: str) -> float:
    """User and system time of a command and of all that it started.

    Raises CalledProcessError, TimeoutExpired.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, cwd=folder, timeout=AT_MOST_S
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def commands(
    own: Mapping[str, list[str]], peer: str, perfdoc: str, baseline: str | None
) -> dict[str, list[str] | str]:
    """What each tool runs on its own copies, or why it does not."""
    made: dict[str, list[str] | str] = {}
    for tool, command in (("perfdoc", perfdoc), ("baseline", baseline)):
        if command is not None:
            made[tool] = [command, "analyze", *own[tool], "-o", f"{tool}-report", "--force"]
    files = own[peer]
    there, why = installed(peer)
    if why:
        made[peer] = why
    elif peer == "nsys-ai":
        made[peer] = [f"{there}/nsys-ai", "diagnose", files[0], "--format", "json", "-o", "findings.json"]
    else:
        made[peer] = [f"{there}/python", "-c", _HTA, *files]
    return made


def copied(files: Sequence[Path], folder: Path) -> list[str]:
    """Copies of files that a tool may write to."""
    folder.mkdir()
    return [shutil.copyfile(file, folder / file.name).as_posix() for file in files]


def measured(
    files: Sequence[Path], peer: str, perfdoc: str, baseline: str | None, rounds: int
) -> dict[str, list[float] | str]:
    """CPU seconds of each tool by round (NaN: it did not end), or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        own = {tool: copied(files, Path(folder, tool).resolve()) for tool in ("perfdoc", "baseline", peer)}
        made = commands(own, peer, perfdoc, baseline)
        found: dict[str, list[float] | str] = {k: ([] if isinstance(v, list) else v) for k, v in made.items()}
        for turn in range(rounds + 1):
            for tool, command in made.items():
                times = found[tool]
                if isinstance(times, str) or isinstance(command, str):
                    continue
                try:
                    taken = cpu_s(command, folder)
                except subprocess.TimeoutExpired:
                    taken = nan
                except subprocess.CalledProcessError as error:
                    said = (error.stderr or "").strip().splitlines()
                    found[tool] = f"fails: {said[-1][:120] if said else error.returncode}"
                    continue
                if turn:
                    times.append(taken)
    return found


def cell(times: list[float] | str) -> str:
    if isinstance(times, str):
        return times
    known = ended(times)
    late = f"{len(times) - len(known)} of {len(times)} rounds did not end within {AT_MOST_S} s"
    if not known:
        return late
    found = f"{median(known):.2f} s ({min(known):.2f} to {max(known):.2f})"
    return found if len(known) == len(times) else f"{found}; {late}"


def ended(times: list[float]) -> list[float]:
    return [t for t in times if not isnan(t)]


def judged(found: dict[str, list[float] | str], other: str, bar: float) -> str:
    """perfdoc's part of another tool's time, and whether that is within the bar."""
    ours, theirs = found["perfdoc"], found.get(other, "not asked")
    if isinstance(ours, str) or isinstance(theirs, str) or not ended(ours) or not ended(theirs):
        return "-"
    ratio = median(ended(ours)) / median(ended(theirs))
    return f"{ratio:.2f}, {'met' if ratio <= bar else 'missed'} ({bar:g})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--baseline", help="another perfdoc: a revision or a path")
    parser.add_argument("--perfdoc", default="HEAD", help="a revision or a path (default: HEAD, installed)")
    parser.add_argument("--only", default=",".join(CAPTURES))
    given = parser.parse_args()
    perfdoc, baseline = perfdoc_of(given.perfdoc), given.baseline and perfdoc_of(given.baseline)
    print(
        "| capture | perfdoc | baseline | peer | of the baseline | of the peer |\n|---|---|---|---|---|---|"
    )
    for name in given.only.split(","):
        pattern, peer, bar = CAPTURES[name]
        files = sorted(TRACES.glob(pattern))
        if not files:
            print(f"| {name} | {TRACES / pattern} is not here |", flush=True)
            continue
        found = measured(files, peer, perfdoc, baseline, given.rounds)
        row = [cell(found["perfdoc"]), cell(found.get("baseline", "-")), f"{peer} {cell(found[peer])}"]
        row += [judged(found, "baseline", bar), judged(found, peer, OF_PEER)]
        print(f"| {name} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
