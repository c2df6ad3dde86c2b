"""YAML and JSON: nested and dotted keys, lists of overrides, blocks of environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from perfdoc.knobs.reading.entry import MAX_DEPTH, MAX_ENTRIES, Entry, NotAConfigurationError
from perfdoc.knobs.reading.shell import shell_entries, starts_program, word_entries
from perfdoc.knobs.values import OPAQUE, Raw

_MAX_NODES = 4 * MAX_ENTRIES
_CORE = "tag:yaml.org,2002:"
_OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w-]*(?:[./][\w-]+)*=.*", re.DOTALL)
_COMMANDS = frozenset({"command", "run", "cmd", "script", "entrypoint"})
"""Keys of orchestrators."""
_JSON_REMARK = re.compile(
    r"""(?s)("(?:\\.|[^"\\\n])*"?|'[^'\n]*')|(?<![:\w/])(?://[^\n]*|/\*.*?(?:\*/|\Z))"""
)
_KEY = re.compile(r"(?:\+{0,2}|--)[A-Za-z_][\w./@-]*")


@dataclass
class _Node:
    line: int
    text: str | None = None
    """Of a scalar."""
    plain: bool = True
    """Not in quotes."""
    block: bool = False
    pairs: list[tuple[_Node, _Node]] = field(default_factory=list)
    items: list[_Node] = field(default_factory=list)
    kind: str = "scalar"


def yaml_entries(text: str) -> Iterator[Entry]:
    """Every setting of a YAML or JSON text, all documents. Raises NotAConfigurationError."""
    json = text.lstrip()[:1] in ("{", "[")  # with remarks, whose lines stay
    try:
        roots = _documents(
            _JSON_REMARK.sub(lambda m: m[1] or "\n" * m[0].count("\n"), text) if json else text
        )
    except NotAConfigurationError:
        roots = _documents(text)  # YAML that has a remark's signs in a value
    budget = _MAX_NODES  # an alias is walked where it is used, so a small file may be endless
    for root in roots:
        todo: list[tuple[str, _Node, int, int]] = [("", root, 0, 0)]
        while todo:
            path, node, depth, inside = todo.pop()
            budget -= 1
            if budget < 0 or depth > MAX_DEPTH:
                raise NotAConfigurationError("is nested or repeated too much. Give a configuration.")
            if node.kind == "mapping":
                yield from _environment_pair(node)
                todo += [
                    (_joined(path, k), v, depth + 1, id(node)) for k, v in reversed(node.pairs) if _is_key(k)
                ]
            elif node.kind == "sequence" and any(i.kind != "scalar" for i in node.items):
                todo += [(path, item, depth + 1, inside) for item in reversed(node.items)]
            elif path or node.kind == "sequence":
                yield from _leaf(path, node, inside)


def _documents(text: str) -> list[_Node]:
    """Trees of the documents, from the parser's events and without recursion, which a file could exhaust."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    roots: list[_Node] = []
    stack: list[tuple[_Node, list[_Node]]] = []
    anchors: dict[str, _Node] = {}
    count = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            count += 1
            if count > 4 * _MAX_NODES or len(stack) > MAX_DEPTH:
                raise NotAConfigurationError("is nested too deeply or too long. Give a configuration.")
            node: _Node | None = None
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            tag = getattr(event, "tag", None)
            if tag and tag != "!":
                _refuse_tag(tag, line)
            if isinstance(event, yaml.ScalarEvent):
                plain = event.style in (None, "")
                node = _Node(line=line, text=event.value, plain=plain, block=event.style in ("|", ">"))
            elif isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
                kind = "mapping" if isinstance(event, yaml.MappingStartEvent) else "sequence"
                opened = _Node(line=line, kind=kind)
                if event.anchor:
                    anchors[event.anchor] = opened
                stack.append((opened, []))
            elif isinstance(event, yaml.AliasEvent):
                node = anchors.get(event.anchor or "", _Node(line=line, text="", plain=True))
                if any(node is parent for parent, _ in stack):
                    raise NotAConfigurationError(f"line {line}: holds itself. Give a configuration.")
            elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                node, children = stack.pop()
                if node.kind == "mapping":
                    node.pairs = list(zip(children[::2], children[1::2], strict=True))
                else:
                    node.items = children
            if node is None:
                continue
            if isinstance(event, yaml.ScalarEvent) and event.anchor:
                anchors[event.anchor] = node
            if stack:
                stack[-1][1].append(node)
            else:
                roots.append(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or "no YAML"
        raise NotAConfigurationError(f"{where}{problem}. Mend it, or give flags or variables.") from error
    return roots


def _refuse_tag(tag: str, line: int) -> None:
    known = ("str", "int", "float", "bool", "null", "map", "seq", "timestamp")
    if tag not in {_CORE + k for k in known}:
        shown = tag.replace(_CORE, "!!")
        raise NotAConfigurationError(f"line {line}: has the YAML tag {shown}, which is not read. Remove it.")


def _is_key(node: _Node) -> bool:
    return node.kind == "scalar" and node.text is not None


def _joined(path: str, key: _Node) -> str:
    name = (key.text or "").lstrip("+~")
    if name == "<<":  # what it brings in stands in the place of the mapping
        return path
    return f"{path}.{name}" if path else name


def _environment_pair(node: _Node) -> Iterator[Entry]:
    """`{name: NCCL_DEBUG, value: INFO}`, as orchestrators list variables."""
    values = {k.text: v for k, v in node.pairs if _is_key(k)}
    name, value = values.get("name"), values.get("value")
    if name is not None and value is not None and name.text and name.text.isupper():
        yield Entry(form="env", name=name.text, raw=_raw(value), line=name.line)


def _leaf(path: str, node: _Node, inside: int) -> Iterator[Entry]:
    last = path.rpartition(".")[2]
    if node.kind == "sequence":
        texts = [(i.text or "", i.line) for i in node.items]
        scripts = [
            i for i in node.items if (i.block or " " in (i.text or "")) and starts_program(i.text or "")
        ]
        if scripts:  # `bash -c` and what it runs
            for item in scripts:
                yield from shell_entries(item.text or "", item.line + item.block)
            return
        if any(t.startswith("--") for t, _ in texts) or (
            texts and all(_OVERRIDE.fullmatch(t) for t, _ in texts)
        ):
            yield from word_entries(texts)
            return
    elif (node.block and re.search(r"(^|\s)--[a-z]|\bexport\s", node.text or "")) or (
        last in _COMMANDS and starts_program(node.text or "")
    ):
        yield from shell_entries(node.text or "", node.line + node.block)
        return
    if not path or not _KEY.fullmatch(last):
        return
    if last.isupper() and "_" in last:
        yield Entry(form="env", name=last, raw=_raw(node), line=node.line)
    elif last.startswith("--"):
        yield Entry(form="flag", name=last, raw=_raw(node), line=node.line)
    else:
        yield Entry(form="path", name=path, raw=_raw(node), line=node.line, command=inside)


def _raw(node: _Node) -> Raw:
    if node.kind == "sequence":
        return tuple(i.text or "" for i in node.items)
    if node.kind == "mapping":
        return OPAQUE
    text = node.text or ""
    # `none` is a word in YAML: a choice of some knobs, and read as null by read_value for the others.
    return None if node.plain and text.lower() in ("", "null", "~") else text
