"""docs/trainer.md names every branch on CUDA and every door into megatron-core, each with what tries it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Every branch on CUDA")[1].split("\n## ")[0]
CUDA = re.compile(
    r"cuda_available|cuda\.is_available|transformer_engine|attends_in_bf16|is_cuda\b|\b_cuda\b|with_engine"
    r"|[=!]= '(cuda|cpu)'|on_cpu|is_attached|full_iteration"
)
ASKED = ("cuda_available", "transformer_engine_available", "uses_transformer_engine")
"""Their answer may be a value as well as a branch."""


def branches(source: str) -> set[str]:
    """Qualified names of the functions of a file in which something depends on CUDA."""
    found: set[str] = set()

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                within_class = isinstance(node, ast.ClassDef)
                inner = f"{name}.{child.name}" if within_class else child.name
            for condition in conditions(child):
                if CUDA.search(ast.unparse(condition)):
                    found.add(inner)
            visit(child, inner)

    visit(ast.parse(source), "")
    return found


def conditions(node: ast.AST) -> Iterator[ast.expr]:
    """What a node depends on."""
    if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
        yield node.test
    if isinstance(node, ast.comprehension):
        yield from node.ifs
    if isinstance(node, ast.Match):
        yield node.subject
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ASKED:
        yield node


def entered(source: str) -> set[str]:
    """Names of megatron-core that a file imports, wherever in it."""
    return {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("megatron.")
        for alias in node.names
    }


def rows(columns: str) -> list[list[str]]:
    """Cells of the table with these columns."""
    table = SECTION.split(columns)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]


def files(*rooms: str) -> dict[str, str]:
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
    }


def test_every_branch_is_listed() -> None:
    there = {
        f"`{file}` `{name}`"
        for file, text in files("trainer", "profiling").items()
        for name in branches(text)
    }
    assert {row[0] for row in rows("| where | what it decides | tried by |")} == there


def test_every_door_into_megatron_core_is_listed() -> None:
    there = {f"`{file}`": entered(text) for file, text in files("trainer").items()}
    listed = {
        row[0]: set(re.findall(r"`(\w+)`", row[1]))
        for row in rows("| where | enters of megatron-core | tried by |")
    }
    assert listed == {file: names for file, names in there.items() if names}


def test_each_has_a_test_that_is_there_or_the_reason_why_none() -> None:
    for columns in (
        "| where | what it decides | tried by |",
        "| where | enters of megatron-core | tried by |",
    ):
        for row in rows(columns):
            named = re.findall(r"`(tests/[\w/]+\.py)`", row[2])
            assert all((ROOT / path).is_file() for path in named), row
            assert named or re.match(r"none: .{8,}", row[2]), row


def test_a_branch_is_seen_where_it_stands() -> None:
    source = """
class A:
    def f(self):
        return 1 if self._cuda else 2
def g(device):
    def h():
        if device == "cuda":
            pass
def k():
    return dict(a=adapt.cuda_available())
def plain(x):
    return 1 if x else 2
"""
    assert branches(source) == {"A.f", "h", "k"}
    assert entered("def f():\n    from megatron.core.x import y\nimport os") == {"y"}
