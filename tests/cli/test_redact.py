"""perfdoc redact in a real process."""

from __future__ import annotations

from pathlib import Path

from perfdoc.simulator.demo import write_demo
from tests.cli.test_analyze import perfdoc


def test_a_copy_and_what_is_said_of_it(tmp_path: Path) -> None:
    demo = write_demo(tmp_path / "demo")[0]
    done = perfdoc("redact", demo, "-o", "copy.sqlite", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("perfdoc: wrote copy.sqlite: ")
    assert first.endswith("; 2 ledgers as in the original")
    assert "look before you share it" in second
    assert perfdoc("diff", demo, "copy.sqlite", cwd=tmp_path).stdout.startswith("No change")


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    demo = write_demo(tmp_path / "demo")[0]
    for words, said in (
        ((demo, "-o", demo), "is the capture itself"),
        ((demo, "-o", "no/such/folder/x.sqlite"), "cannot be written"),
        ((demo, "-o", "x.sqlite", "--keep", "("), "is not a regular expression"),
        (("nothing", "-o", "x.sqlite"), "does not exist"),
    ):
        done = perfdoc("redact", *words, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert said in done.stderr
        assert "/.perfdoc-" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["demo"]
