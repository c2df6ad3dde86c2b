"""Python: keyword arguments of calls and assignments to names and attributes. Parsed, never run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from perfdoc.knobs.reading.entry import MAX_DEPTH, Entry, NotAConfigurationError
from perfdoc.knobs.values import OPAQUE, Raw

_MAX_BRACKETS = 60


def python_entries(text: str) -> Iterator[Entry]:
    """Every setting of a Python file. Raises NotAConfigurationError where it does not parse."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Call):
            owner = _dotted(node.func)
            for keyword in node.keywords:
                if owner and keyword.arg and (owner.rpartition(".")[2][:1].isupper()):
                    name = f"{owner.rpartition('.')[2]}.{keyword.arg}"
                    line = keyword.value.lineno
                    yield Entry(form="path", name=name, raw=_raw(keyword.value), line=line, command=id(node))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from _assigned(target, node.value)


def parsed(text: str) -> ast.Module:
    """The syntax tree. Raises NotAConfigurationError for text that is no Python, or is nested absurdly."""
    deepest = depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    try:
        if deepest > _MAX_BRACKETS:
            raise NotAConfigurationError("is nested too deeply. Give a configuration.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on escapes that are none
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, NotAConfigurationError):
            raise
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        raise NotAConfigurationError(f"{where}no Python. Give YAML, flags or variables.") from error


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[Entry]:
    line = target.lineno
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        name = target.slice.value
        if _dotted(target.value) == "os.environ" and isinstance(name, str):
            yield Entry(form="env", name=name, raw=_raw(value), line=line)
        return
    path = _dotted(target)
    if path:
        yield Entry(
            form="path", name=path, raw=_raw(value), line=line, command=id(target), bare="." not in path
        )


def _dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute) and len(names) < MAX_DEPTH:
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _raw(node: ast.expr) -> Raw:
    if isinstance(node, ast.Constant):
        if node.value is None or isinstance(node.value, (str, int, float)):
            return None if node.value is None else str(node.value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _raw(node.operand)
        return f"-{inner}" if isinstance(inner, str) else OPAQUE
    elif isinstance(node, (ast.List, ast.Tuple)):
        texts = [_raw(e) for e in node.elts]
        return (
            tuple(t for t in texts if isinstance(t, str))
            if all(isinstance(t, str) for t in texts)
            else OPAQUE
        )
    elif isinstance(node, ast.Attribute):
        dotted = _dotted(node)
        known = dotted.startswith("torch.") or dotted.split(".")[-2:-1] == ["AttnBackend"]
        return dotted if known else OPAQUE
    return OPAQUE
