"""The README's first screen is what the demonstration prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import perfdoc

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.slow
def test_the_sample_is_what_make_demo_prints(tmp_path: Path) -> None:
    assert perfdoc("demo", "-o", "demo", cwd=tmp_path).returncode == 0
    done = perfdoc(
        *("analyze", "demo/traces", "--config", "demo/job.yaml", "-o", "perfdoc-report"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert f"```\n{done.stdout.rstrip()}\n```\n" in README.read_text(encoding="utf-8")
