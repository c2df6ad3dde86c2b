"""Two analyses at the same time: each has its report, and neither replaces the other's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from perfdoc.cli import analysis
from perfdoc.diagnose.asked import parse_request
from tests.amount import some
from tests.command import perfdoc
from tests.planted.capture import write_capture


@pytest.mark.parametrize(
    "named", some([None, "report"], ["report"]), ids=["no folder named", "a folder named"]
)
def test_the_later_one_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    """The other one begins and ends while this one has checked its options and not begun."""
    demo = write_capture(tmp_path / "demo")
    shutil.copy(demo, tmp_path / "slow.sqlite")
    shutil.copy(demo, tmp_path / "quick.sqlite")
    monkeypatch.chdir(tmp_path)
    slow = parse_request(["slow.sqlite"], jobs=1)
    output = analysis.Output(
        folder=Path(named) if named else None,
        json_file=None,
        format_="markdown",
        amount="screen",
        fail_on=frozenset(),
        force=False,
    )
    analysis.check_output(output, slow)
    folder = Path(named or "perfdoc-report")
    assert (
        perfdoc("analyze", "--no-replay", "quick.sqlite", *(("-o", named) if named else ())).returncode == 0
    )
    before = (folder / "diagnosis.json").read_bytes()
    if named:
        with pytest.raises(analysis.UserError, match=r"report: is there already\."):
            analysis.run(slow, output, lambda: None)
    else:
        analysis.run(slow, output, lambda: None)
        assert "slow.sqlite" in Path("perfdoc-report-2", "diagnosis.json").read_text()
    assert (folder / "diagnosis.json").read_bytes() == before
