"""What is kept of a file of ours: made once, and again where the file changed or what was kept is damaged."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from perfdoc.analyzers.kernel_class.names import qualified_name
from perfdoc.analyzers.kernel_class.rules import RULES, literals_of
from perfdoc.kept import kept, loaded, table

_MADE: list[bytes] = []


def _counted(content: bytes) -> list[str]:
    _MADE.append(content)
    return content.decode().split()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    _MADE.clear()
    file = tmp_path / "words.txt"
    file.write_text("one two")
    return file


def test_a_file_is_made_something_of_once_and_again_when_it_changes(file: Path) -> None:
    assert kept(file, _counted) == kept(file, _counted) == ["one", "two"]
    assert len(_MADE) == 1
    file.write_text("one six")  # as long, perhaps in the same second
    assert kept(file, _counted) == ["one", "six"]
    assert loaded(b"a: [1, x]") == {"a": [1, "x"]}


def test_a_file_that_is_not_ours_is_made_again_when_its_size_or_time_changes(file: Path) -> None:
    beside = file.with_name("ours")
    was = file.stat()
    assert kept(file, _counted, beside=beside) == ["one", "two"]
    file.write_text("one six")
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert kept(file, _counted, beside=beside) == ["one", "two"], "nobody reads it to see"
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns + 1))
    assert kept(file, _counted, beside=beside) == ["one", "six"]
    file.write_text("one two three")
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns + 1))
    assert kept(file, _counted, beside=beside) == ["one", "two", "three"]
    assert len(_MADE) == 3


def test_it_is_made_again_where_a_function_that_makes_it_changes(file: Path) -> None:
    for by in (1, 2):
        code = f"def inner(b):\n    return len(b) * {by}\ndef make(b):\n    return inner(b)\n"
        (module := file.with_name("made.py")).write_text(code)
        names: dict[str, Any] = {}
        exec(compile(code, module, "exec"), names)
        assert kept(file, names["make"]) == 7 * by
    module.unlink()
    assert kept(file, names["make"]) == 14, "where there is no module's file, too"


@pytest.mark.parametrize("damage", [b"", b"no marshal", b"\xe9\x02", b"i\x05\x00\x00\x00"])
def test_what_is_damaged_is_made_again(file: Path, damage: bytes) -> None:
    kept(file, _counted)
    (place,) = (file.parent / "__pycache__").iterdir()
    place.write_bytes(damage)
    assert kept(file, _counted) == ["one", "two"]
    assert len(_MADE) == 2
    assert kept(file, _counted) == ["one", "two"]
    assert len(_MADE) == 2


def test_each_bit_counts(file: Path) -> None:
    kept(file, _counted)
    (place,) = (file.parent / "__pycache__").iterdir()
    whole = place.read_bytes()
    for at in range(len(whole)):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :])
        assert kept(file, _counted) == ["one", "two"]
    assert len(_MADE) == 1 + len(whole)


def test_nothing_is_kept_where_python_keeps_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert kept(file, _counted) == kept(file, _counted)
    assert [path.name for path in file.parent.iterdir()] == ["words.txt"]


def test_nothing_is_kept_where_no_folder_can_be_made(file: Path) -> None:
    (file.parent / "__pycache__").write_text("in the way")
    assert kept(file, _counted) == kept(file, _counted) == ["one", "two"]
    assert len(_MADE) == 2


def test_a_yaml_file_is_plain_data(file: Path) -> None:
    file.write_text("- {a: 1, b: [x, null, 2.5]}")
    assert table(file) == table(file) == [{"a": 1, "b": ["x", None, 2.5]}]


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        (r"(?:^|::)nccl(?:Dev)?Kernel_\w+", ["kernel_"]),
        (r"abcd?", ["abc"]),
        (r"ab|cd", ["ab", "cd"]),
        (r"ab|\d+", []),
        (r"(?i)aBc", ["abc"]),
        (r"x{2,345}yz", ["yz"]),
        (r"[abc]+\dabc\(", ["abc"]),
        (r"(?<![a-z])fp8(?!x)", ["fp8"]),
        (r"a(?:bc|(?P<kind>[Dd]ef|gg(?!h|i(?:j|k)))l)m*", ["bc", "def", "gg"]),
        (r"(?:abc)?d(?i:E)*(?:fg|)", ["d"]),
    ],
)
def test_one_of_the_literals_is_in_all_that_a_pattern_fits(pattern: str, literals: list[str]) -> None:
    assert literals_of(pattern) == literals


def test_no_row_of_the_table_is_passed_over_by_its_literal() -> None:
    """Against names made of every row's own literals and words: what a pattern fits holds its literal."""
    words = sorted({w for rule in RULES for w in re.findall(r"[A-Za-z_:]{3,}", rule.name)})
    names = [*words, *(f"ns::{a}{b}" for a in words[::7] for b in words[::11])]
    passed = 0
    for rule in RULES:
        pattern = re.compile(rule.name)
        fitting = [name for name in names if pattern.search(qualified_name(name, name))]
        for name in fitting:
            holds = [text in qualified_name(name, name).lower() for text in rule.needed]
            assert any(holds) or not holds, (rule.label, name)
        passed += bool(rule.needed and fitting)
    assert passed > 80
    assert [rule.label for rule in RULES if not rule.needed] == []
