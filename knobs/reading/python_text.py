"""Python programs: calls and assignments that set something, command lines that are lists. Nothing is run."""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from perfdoc.knobs.reading.entry import MAX_BITS, MAX_DEPTH, Entry, NotAConfigurationError, listed, whole
from perfdoc.knobs.reading.shell import shell_entries, starts_program, word_entries
from perfdoc.knobs.values import OPAQUE, Raw

_MAX_BRACKETS = 60
_LEAVES = (ast.Name, ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.alias)
"""Nodes that set nothing and hold nothing: half of a program."""


def python_entries(text: str) -> Iterator[Entry]:
    """Every setting of a Python file. Raises NotAConfigurationError where it does not parse."""
    tree = parsed(text)
    known = _constants(tree)
    todo: list[tuple[ast.AST, str, bool, bool]] = [(tree, "", True, False)]
    while todo:
        node, block, sure, shown = todo.pop()
        shown = (shown or _is_shown(node)) and not _starts_another(node)
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple)) and shown:
            continue  # what people read is not run
        for entry in _set_by(node, known):
            yield replace(entry, block=block, raw=entry.raw if sure else OPAQUE)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            block = f"{block}.{node.name}" if block else node.name
        if isinstance(node, ast.If):  # what is set under a condition may be another's
            holds = _computed(node.test, known)
            todo += [(n, block, sure and holds is not None, shown) for n in node.orelse[::-1] if not holds]
            match node.test:
                case ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]):
                    holds = True
            sure = sure and holds is not None
            todo += [(n, block, sure, shown) for n in node.body[::-1] if holds is None or holds]
            todo.append((node.test, block, sure, shown))
        elif not isinstance(node, ast.JoinedStr):
            inner = [child for child in ast.iter_child_nodes(node) if not isinstance(child, _LEAVES)]
            todo += [(child, block, sure, shown) for child in reversed(inner)]


_SHOWS = re.compile(
    r"(?i)\((.*\.)?((print|warn|log_)\w*|_*log|logging|\w*logger|echo|exit|error)(\.\w+)?$"
    r"|\w*(usage|help(?!er)|example|doc(?!ker)|epilog|description)"
)


def _is_shown(node: ast.AST) -> bool:
    """Whether the texts in it are messages, helps, examples or docstrings."""
    names = [f"({_called(node)}"] if isinstance(node, ast.Call) else []
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [_dotted(target).rpartition(".")[2] for target in targets]
    elif isinstance(node, ast.keyword):
        names = [node.arg or ""]
    alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return alone or isinstance(node, ast.Raise) or any(map(_SHOWS.match, names))


def _called(call: ast.Call) -> str:
    """The function's name; of `logging.getLogger("x").info` without what is between."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(call.func, ast.Attribute) and isinstance(owner, ast.Call):
        return f"{_dotted(owner.func)}.{call.func.attr}"
    return _dotted(call.func)


_STARTS = re.compile(r"(?i)(.*\.)?(subprocess\.\w+|system|run\w*|\w*_call|popen|main)$")


def _starts_another(node: ast.AST) -> bool:
    """Whether it is a call that starts a program: `sys.exit(subprocess.call([…]))` shows nothing."""
    return isinstance(node, ast.Call) and _STARTS.match(_called(node)) is not None


_Constants = Mapping[str, bool | int | float | str | ast.expr]
"""Names with one plain value, or with one dictionary."""
_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
        **{ast.FloorDiv: operator.floordiv, ast.Gt: operator.gt, ast.Lt: operator.lt},
        **{ast.GtE: operator.ge, ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne},
    }
)
_MOST = 10**12
"""Of a number that is computed."""


def _constants(tree: ast.Module) -> _Constants:
    """Names that nothing sets but one plain value at the top of a program, or one dictionary anywhere."""
    nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.arg, ast.stmt))]
    stored = Counter(
        name
        for node in nodes
        for name in (
            [node.id]
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else [node.arg]
            if isinstance(node, ast.arg)
            else node.names * 2
            if isinstance(node, (ast.Global, ast.Nonlocal))
            else []
        )
    )
    found: dict[str, bool | int | float | str | ast.expr] = {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and stored[node.targets[0].id] == 1
        and _items(node.value)
    }
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Name) and stored[target.id] == 1 and isinstance(node, ast.Assign):
            value = _computed(node.value, found)
            if value is not None:
                found[target.id] = value
    return found


def _computed(node: ast.expr, known: _Constants, depth: int = 0) -> bool | int | float | str | None:
    """A plain value, a constant, or a sum or comparison of whole numbers; None for what it is not."""
    if isinstance(node, ast.Constant):
        value = node.value
        huge = isinstance(value, int) and value.bit_length() > MAX_BITS
        return None if huge or not isinstance(value, (bool, int, float, str)) else value
    if isinstance(node, ast.Name):
        named = known.get(node.id)
        return None if isinstance(named, ast.expr) else named
    if depth > MAX_DEPTH:
        return None
    kind: type[ast.AST]
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        parts, kind = (node.left, node.comparators[0]), type(node.ops[0])
    elif isinstance(node, ast.BinOp):
        parts, kind = (node.left, node.right), type(node.op)
    else:
        return None
    left, right = (_computed(part, known, depth + 1) for part in parts)
    if kind not in _OPERATORS or not isinstance(left, int) or not isinstance(right, int):
        return None
    if kind is ast.FloorDiv and right == 0:
        return None
    result: bool | int = _OPERATORS[kind](left, right) if max(abs(left), abs(right)) < _MOST else _MOST
    return result if abs(result) < _MOST else None


def _set_by(node: ast.AST, known: _Constants) -> Iterator[Entry]:
    if isinstance(node, (ast.Dict, ast.Call)):
        yield from _of_deepspeed(node, known)
    if isinstance(node, (ast.List, ast.Tuple)):
        yield from _of_command(node, known)
    elif isinstance(node, (ast.Constant, ast.JoinedStr)):
        yield from _of_script(node, known)
    elif isinstance(node, ast.Call) and _dotted(node.func) == "setattr" and len(node.args) == _OF_SETATTR:
        path, field, value = node.args
        if _dotted(path) and isinstance(field, ast.Constant) and isinstance(field.value, str):
            yield _path(f"{_dotted(path)}.{field.value}", value, known, node)
    elif isinstance(node, ast.Call) and (recipe := _RECIPE.search(_dotted(node.func)[-_LONGEST:])):
        yield _path("model_recipe", ast.Constant(recipe[1] or recipe[2], lineno=node.lineno), known, node)
        for keyword in node.keywords:
            if keyword.arg in ("num_nodes", "num_gpus_per_node"):
                yield _path(f"recipe_{keyword.arg}", keyword.value, known, node)
    elif isinstance(node, ast.Call):
        owner = _owner(node)
        for name, value in _made(node, known) if owner[:1].isupper() or owner == _OF_CORE else ():
            yield _path(f"{owner}.{name}", value, known, node)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from _assigned(target, node.value, known)


_OF_CORE = "initialize_model_parallel"
"""megatron-core's function that takes the layout."""
_RECIPE = re.compile(
    r"\b(\w+)\.(?:pretrain|finetune)_recipe$|\b([a-zA-Z]\w*?)_(?:pretrain|finetune|sft|peft)_(?:\w+_)?config$"
)
"""Functions of NeMo and Megatron-Bridge whose name is a model's."""
_LONGEST = 200
"""Letters of such a name: a longer one is none."""


def _items(node: ast.expr | None) -> list[tuple[str, ast.expr]]:
    """Keys and values of a dictionary, also of `dict(…)`; of its keys those that are plain texts."""
    if isinstance(node, ast.Call) and _dotted(node.func) == "dict":
        return [(k.arg, k.value) for k in node.keywords if k.arg]
    if not isinstance(node, ast.Dict):
        return []
    pairs = zip(node.keys, node.values, strict=True)
    return [(k.value, v) for k, v in pairs if isinstance(k, ast.Constant) and isinstance(k.value, str)]


def _made(call: ast.Call, known: _Constants) -> Iterator[tuple[str, ast.expr]]:
    """Arguments of a call by their names, also of `**` with a dictionary, and what a dictionary holds."""
    for keyword in call.keywords:
        named = known.get(keyword.value.id) if isinstance(keyword.value, ast.Name) else keyword.value
        inner = _items(named) if isinstance(named, ast.expr) else []
        if keyword.arg and not inner:
            yield keyword.arg, keyword.value
        for key, value in inner:
            yield (f"{keyword.arg}.{key}" if keyword.arg else key), value


_DEEPSPEEDS = frozenset({"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"})


def _of_deepspeed(node: ast.expr, known: _Constants, path: str = "", depth: int = 0) -> Iterator[Entry]:
    """DeepSpeed's configuration where it is a dictionary of the program; nothing of another dictionary."""
    pairs = _items(node)
    if not path and not any(key in _DEEPSPEEDS for key, _ in pairs):
        return
    for key, value in pairs:
        name = f"{path}{key}"
        if _items(value) and depth < MAX_DEPTH:
            yield from _of_deepspeed(value, known, f"{name}.", depth + 1)
        elif not isinstance(value, ast.List):  # values that a search tries
            yield _path(name, value, known, node)


def _of_script(node: ast.Constant | ast.JoinedStr, known: _Constants) -> Iterator[Entry]:
    """What a command sets that a program starts as one text, in which a name may be that of a constant."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    raws = [_raw(part, known) for part in parts]
    text = "".join(raw if isinstance(raw, str) else "$unknown" for raw in raws)
    if text.count(" --") < _ENOUGH or not starts_program(text):
        return
    for entry in shell_entries(_FLAG_BELOW.sub(r" \\\n", text), node.lineno):
        yield replace(entry, command=id(node) + entry.command)


_FLAG_BELOW = re.compile(r"(?<!\\)\n(?=[ \t]*--)")
"""An end of a line in a text that goes on with a flag."""
_OF_SETATTR = 3
"""Arguments."""
_ENOUGH = 2
"""Flags that make a list a command line."""


def _of_command(node: ast.List | ast.Tuple, known: _Constants) -> Iterator[Entry]:
    """What a command line sets that a program starts: `["torchrun", "train.py", "--seq-length", "4096"]`."""
    words = [(raw if isinstance(raw, str) else "$unknown") for raw in (_raw(e, known) for e in node.elts)]
    if sum(word.startswith("--") for word in words) >= _ENOUGH or starts_program(" ".join(words)):
        yield from word_entries([(w, e.lineno) for w, e in zip(words, node.elts, strict=True)], id(node))


def _owner(call: ast.Call) -> str:
    """The class that a call makes, also by NeMo-Run's `run.Config(Class, …)`."""
    owner = _dotted(call.func)
    if owner in ("run.Config", "run.Partial", "Config", "Partial") and call.args:
        owner = _dotted(call.args[0]) or owner
    first, _, last = owner.rpartition(".")
    return first.rpartition(".")[2] if last == "Config" and first else last


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
        where = f"line {line}: {getattr(error, 'msg', '')[:80]}: " if line else ""
        raise NotAConfigurationError(f"{where}no Python. Mend it, or give YAML or flags.") from error


def _assigned(target: ast.expr, value: ast.expr, known: _Constants) -> Iterator[Entry]:
    line = target.lineno
    if isinstance(target, ast.Subscript):
        keys: list[str] = []
        owner: ast.expr = target
        while isinstance(owner, ast.Subscript):
            if isinstance(owner.slice, ast.Constant) and isinstance(owner.slice.value, str):
                keys.insert(0, owner.slice.value)
            owner = owner.value
        if _dotted(owner) == "os.environ" and len(keys) == 1:
            yield Entry(form="env", name=keys[0], raw=_raw(value, known), line=line)
        elif _DEEPSPEEDS & {*keys[:1]} and not _items(value):
            yield _path(".".join(keys), value, known, target)
    elif (path := _dotted(target)) and not _OWN.fullmatch(path):
        yield replace(_path(path, value, known, target), line=line, bare="." not in path)


_OWN = re.compile(r"self\.\w+")
"""What a class keeps of what it is given, such as a model's configuration."""


def _path(name: str, value: ast.expr, known: _Constants, of: ast.AST) -> Entry:
    """A path that is set; what is set by one call or dictionary belongs together."""
    return Entry(form="path", name=name, raw=_raw(value, known), line=value.lineno, command=id(of))


def _dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute) and len(names) < MAX_DEPTH:
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _raw(node: ast.expr, known: _Constants) -> Raw:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, int) and node.value.bit_length() > MAX_BITS:
            return OPAQUE
        if node.value is None or isinstance(node.value, (str, int, float)):
            return None if node.value is None else str(node.value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = OPAQUE if isinstance(node.operand, ast.UnaryOp) else _raw(node.operand, known)
        return f"-{inner}" if isinstance(inner, str) else OPAQUE
    elif isinstance(node, (ast.List, ast.Tuple)):
        return listed([_raw(e, known) for e in node.elts])
    elif isinstance(node, ast.Call) and _dotted(node.func) in ("str", "int") and len(node.args) == 1:
        raw = OPAQUE if node.keywords else _raw(node.args[0], known)
        return raw if _dotted(node.func) == "str" else whole(raw)
    elif isinstance(node, ast.JoinedStr):
        parts = listed([_raw(part, known) for part in node.values])
        return "".join(parts) if isinstance(parts, tuple) else OPAQUE
    elif isinstance(node, ast.FormattedValue) and node.format_spec is None and node.conversion < 0:
        return _raw(node.value, known)
    elif isinstance(node, ast.Attribute):
        dotted = _dotted(node)
        of_a_library = dotted.startswith("torch.") or dotted.split(".")[-2:-1] == ["AttnBackend"]
        return dotted if of_a_library else OPAQUE
    computed = _computed(node, known)
    return OPAQUE if computed is None else str(computed)
