"""One word is spelt in one way: docs/glossary.md says which, pages and texts of the program keep to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_documented_paths import tracked

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| ([^|`]+) \| ((?:`[^`|]+`(?:, )?)+) \|$", re.MULTILINE)
SPELLINGS = {
    wrong: right.strip()
    for right, wrongs in _ROW.findall(GLOSSARY.partition("## One spelling")[2])
    for wrong in re.findall(r"`([^`]+)`", wrongs)
}
"""What is not written, and what is instead."""
_EITHER = sorted({form for w in SPELLINGS for form in (w, w[0].upper() + w[1:])})
_WRONG = re.compile(
    rf"(?<![\w.\-/$])({'|'.join(map(re.escape, _EITHER))})(?:s|es|d|ed)?(?![\w\-/.]\w|[\w(=])"
)
_CODE = re.compile(r"^```.*?^```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)


def misspelt(text: str) -> set[str]:
    """Words of the table's second column in prose; code is as its authors spell it."""
    if not any(form in text for form in _EITHER):  # much quicker than the expression
        return set()
    return {found.group(0) for found in _WRONG.finditer(_CODE.sub("``", text))}


def prose_of(source: str) -> Iterator[str]:
    """String constants of several words that are no regular expression."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.count(" ") > 2
            and not re.search(r"\(\?|\\[bsdw]|\|\w+\|", node.value)
        ):
            yield node.value


def test_the_table_is_found_and_finds() -> None:
    assert SPELLINGS["microbatch"] == "micro-batch"
    assert len(SPELLINGS) > 20
    assert misspelt("Two microbatches and an allreduce.") == {"microbatches", "allreduce"}
    assert not misspelt(
        "`allreduce`, ncclAllReduce, num_microbatches=8, --warmup 3, micro-batches, startup.py"
    )


@pytest.mark.parametrize("file", tracked("*.md"), ids=lambda file: str(file.relative_to(ROOT)))
def test_pages(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not misspelt(text.partition("## One spelling")[0] if file.name == "glossary.md" else text)


def test_texts_of_the_program() -> None:
    found = {}
    for file in tracked("*.py"):
        if file.relative_to(ROOT).parts[0] in ("tests", "benchmarks"):
            continue
        if wrong := set().union(*map(misspelt, prose_of(file.read_text(encoding="utf-8")))):
            found[str(file.relative_to(ROOT))] = wrong
    assert found == {}
