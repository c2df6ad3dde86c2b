"""Where results go: pipes, devices and links are kept, and all is written or nothing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.profiling.whole_file import write_all
from tests.command import perfdoc
from tests.planted.capture import write_capture


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("demo"))


def listed(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_a_device_is_written_through(demo: Path, tmp_path: Path) -> None:
    device = tmp_path / "null"
    if os.geteuid() != 0:
        pytest.skip("only root may make a device")
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for arguments in (("--json", device, "--force"), ("--json", device)):  # nothing there to overwrite
        done = perfdoc("analyze", "--no-replay", demo, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert stat.S_ISCHR(device.lstat().st_mode)
    assert listed(tmp_path) == ["null"]


@pytest.mark.slow
def test_a_pipe_is_written_through(demo: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Into a file, since nobody would read from a pipe before perfdoc is done.
    with (tmp_path / "read").open("wb") as kept:
        reader = subprocess.Popen(["cat", str(pipe)], stdout=kept)
    done = perfdoc("analyze", "--no-replay", demo, "--json", pipe, "--force")
    assert done.returncode == 0, done.stderr
    assert reader.wait(timeout=30) == 0
    assert json.loads((tmp_path / "read").read_text())["ranks"]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    script = (
        f"{sys.executable} -m perfdoc analyze {demo} --json >(cat >{tmp_path}/copy; echo >{tmp_path}/end)"
    )
    assert (
        subprocess.run(["bash", "-c", f"{script}; wait $!"], capture_output=True, check=False).returncode == 0
    )
    assert json.loads((tmp_path / "copy").read_text())["ranks"]


def test_a_link_stays_and_its_file_is_replaced(demo: Path, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link, target = tmp_path / "x.json", tmp_path / "far" / "target.json"
    link.symlink_to(target)
    for _ in range(2):  # at first it leads to nothing
        assert perfdoc("analyze", "--no-replay", demo, "--json", link, "--force").returncode == 0
        assert link.is_symlink()
        assert json.loads(target.read_text())["ranks"]
        target.write_text("old")
    assert listed(tmp_path / "far") == ["target.json"]


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("name", ["nodir/x.json", "file/x.json", "folder"])
def test_nothing_is_written_where_the_json_cannot_be(
    demo: Path, tmp_path: Path, name: str, force: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    before = listed(tmp_path)
    done = perfdoc("analyze", "--no-replay", demo, "-o", "out/deep", "--json", name, *force, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"perfdoc: {name}: ")
    assert listed(tmp_path) == before


def test_a_folder_in_place_of_a_report_is_seen_before_anything_is_written(demo: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "report.md").mkdir(parents=True)
    (out / "report.html").write_text("old")
    done = perfdoc("analyze", "--no-replay", demo, "-o", "out", "--force", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "perfdoc: out/report.md: cannot be written: Is a directory.\n"
    assert (out / "report.html").read_text() == "old"
    assert listed(out) == ["report.html", "report.md"]


def test_what_fails_late_leaves_nothing_either(tmp_path: Path) -> None:
    """A full device is only seen on writing, after the files and folders were prepared."""
    (tmp_path / "old").write_bytes(b"old")
    contents = {tmp_path / "a" / "b" / "x": b"x", tmp_path / "old": b"new", Path("/dev/full"): b"y"}
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_all(contents, tmp_path / "a" / "b")
    assert caught.value.filename == "/dev/full"
    assert listed(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"old"


@pytest.mark.parametrize("codes", ["", " ", ","])
def test_fail_on_without_a_code_is_a_mistake(demo: Path, codes: str) -> None:
    done = perfdoc("analyze", "--no-replay", demo, "--json", "-", "--fail-on", codes)
    assert (done.returncode, done.stdout, "names no rule" in done.stderr) == (2, "", True)
