"""Two analyses at the same time: each has its report, and neither replaces the other's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import perfdoc
from tests.simulator.hand_laid import write_hand_laid

SLOW = """
import sys
from pathlib import Path
from perfdoc.cli import analysis as work
output = Path(sys.argv[1]) if len(sys.argv) > 1 else None
words = dict(json_file=None, window=None, step_range=None, fail_on=None, jobs=1, force=False)
options = work.Options.parse(paths=["slow.sqlite"], output=output, **words)
print("checked", flush=True)
sys.stdin.readline()
try:
    work.run(options, "markdown")
except work.UserError as error:
    sys.exit(f"refused: {error}")
"""
"""An analysis that waits for a line once its options are checked."""


@pytest.mark.parametrize("named", [(), ("report",)], ids=["no folder named", "a folder named"])
def test_the_later_one_replaces_nothing(tmp_path: Path, named: tuple[str, ...]) -> None:
    demo, _ = write_hand_laid(tmp_path / "demo")
    shutil.copy(demo, tmp_path / "slow.sqlite")
    shutil.copy(demo, tmp_path / "quick.sqlite")
    slow = subprocess.Popen(
        [sys.executable, "-c", SLOW, *named],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert slow.stdout is not None
    assert slow.stdout.readline() == "checked\n"
    folder = tmp_path / (named[0] if named else "perfdoc-report")
    options = [word for name in named for word in ("-o", name)]
    assert perfdoc("analyze", "quick.sqlite", *options, cwd=tmp_path).returncode == 0
    before = (folder / "diagnosis.json").read_bytes()
    _, said = slow.communicate("go\n", timeout=120)
    assert (folder / "diagnosis.json").read_bytes() == before
    if named:
        assert (slow.returncode, "refused: report: is there already." in said) == (1, True), said
    else:
        assert slow.returncode == 0, said
        assert "slow.sqlite" in (tmp_path / "perfdoc-report-2" / "diagnosis.json").read_text()
