"""A disk that is full and folders that may not be written, met at every place where a run writes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from perfdoc.profiling.run_directory import RunDirectory
from tests.cli.running import ENDLESS, SMALL, Ended, Running, needs_training
from tests.cli.test_run_end import resumed, saved

pytestmark = pytest.mark.slow


def on_small_disk(folder: Path, kilobytes: int, *arguments: str, out: str = "disk/run") -> Ended:
    """Run where `disk` is a file system of that size. It goes with the run, so what lies there is copied."""
    (folder / "disk").mkdir()
    mounted = f'mount -t tmpfs -o size={kilobytes}k none disk && "$@"; code=$?; cp -r disk/. kept; exit $code'
    before = ["unshare", "--mount", "sh", "-c", f"mkdir kept; {mounted}", "sh"]
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", str(folder / "disk")]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    return Running.start(folder, *arguments, out=out, before=before).end()


def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    needs_training()
    # Three checkpoints of about 0.9 MB fit beside the rest, a fourth does not.
    keep = ("save=disk/saved", "save_interval=5", "keep_checkpoints=99")
    ended = on_small_disk(tmp_path, 3072, *ENDLESS, *keep, "--profiler", "none")
    assert ended.code == 1
    (tmp_path / "kept" / "saved").rename(tmp_path / "saved")
    last = saved(tmp_path)[-1]
    assert [path.name for path in (tmp_path / "saved").glob("*.partial")] == []
    failed = f"disk/saved/step_{last + 5:08d}.partial could not be written by rank 0 (is the disk full?)"
    kept = [line for line in ended.lines[1:] if "saved disk/saved/step_" not in line]
    assert len(kept) == 2, kept
    assert kept[0].startswith(f"perfdoc: rank 0: checkpoint.save: {failed}: ")
    assert kept[0].endswith("No space left on device")
    assert kept[1].endswith(
        f"traceback in disk/run/errors/rank0.json; last checkpoint disk/saved/step_{last:08d}"
    )
    assert resumed(tmp_path) == last + 1


def test_a_trace_that_does_not_fit(tmp_path: Path) -> None:
    """The training goes on, and the end says that there is nothing to analyse."""
    needs_training()
    # One rank: of two, one's trace may take the room that the other's step log needs in that moment.
    profiled = ("data_parallel_size=1", "--profiler", "torch", "--profile-start", "3")
    ended = on_small_disk(tmp_path, 160, *SMALL, "train_iters=8", *profiled)
    assert ended.code == 2
    assert len(ended.lines) == 3, ended.lines
    assert ended.lines[1] == (
        "perfdoc: rank 0: profiling: disk/run/traces/rank0.json.gz: No space left on device"
    )
    assert ended.lines[2] == (
        "perfdoc: disk/run: training finished without a trace, so nothing can be analysed."
    )
    kept = RunDirectory.open(tmp_path / "kept" / "run")
    assert kept.manifest().status == "finished"
    assert list((kept.path / "traces").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("-o", "closed/run"), "closed/run: cannot be made: Permission denied. Give a directory that"),
        (("save=closed/saved",), "checkpoint.save = closed/saved: cannot be written: Permission denied."),
        (("data_cache=closed/data",), "data.data_cache: closed/data: cannot be written: Permission denied"),
        (("text=closed/secret.txt",), "data.text = closed/secret.txt: Permission denied"),
        (("tokenizer=closed/secret.txt",), "data.tokenizer = closed/secret.txt: Permission denied"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_folders_that_are_closed(tmp_path: Path, arguments: tuple[str, ...], line: str) -> None:
    needs_training()
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "secret.txt").write_text("a\n\nb\n")
    (tmp_path / "closed" / "secret.txt").chmod(0)
    (tmp_path / "closed").chmod(0o555)
    before = []
    if os.geteuid() == 0:  # root may do everything, unless this is taken from it
        if not shutil.which("setpriv"):
            pytest.skip("root cannot do without its rights here: setpriv is not installed")
        rights = "-dac_override,-dac_read_search"
        before = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
    # Of two -o the later one counts.
    started = Running.start(
        tmp_path, *SMALL, "train_iters=4", "--profiler", "none", *arguments, before=before
    )
    ended = started.end()
    assert ended.code == 2
    assert ended.lines[-1].startswith(f"perfdoc: {line}")
    assert len(ended.lines) <= 2  # the other one says that there is no profiler
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("run.")) == [
        "closed",
        *(["data"] if (tmp_path / "data").exists() else []),
    ]
    assert [path.name for path in (tmp_path / "closed").iterdir()] == ["secret.txt"]
