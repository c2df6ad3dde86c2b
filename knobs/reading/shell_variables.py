"""Variables of a script that it sets itself, put where they are used."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from operator import add, floordiv, mul, sub
from typing import Any

from perfdoc.knobs.reading.shell_words import Word

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_MAX_EXPANDED = 4096
_SUM = re.compile(r"\$\(\(([\w\s$*/+{}()-]{1,200})\)\)")
_MAX_DIGITS = 18
"""Of a number that goes in or comes out: no setting has more."""
_OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: floordiv}
_PART = re.compile(r"\d{1,12}|[A-Za-z_]\w*|[-+*/()]")
_GIVEN = re.compile(r"\$\{(\w+):?=([^${}]*)\}")
_ASKED = re.compile(
    r"^#SBATCH[ \t]+(?:--(nodes|gpus-per-node|gres)[= ]|-(N)[ \t]*)"
    r"(?:gpu:)?(?:[a-zA-Z]\w{0,40}:)?(\d{1,6})(?!\S)",
    re.M,
)
"""No range, as of `--nodes=2-4`: how many there are is known when the job starts."""
_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_GPUS = ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE")
_OF_SLURM = {"nodes": _NODES, "N": _NODES, "gpus-per-node": _GPUS, "gres": _GPUS[1:]}


def asked_of_slurm(text: str) -> dict[str, str]:
    """What Slurm's variables are by the script's own `#SBATCH` lines."""
    asked = {long or short: number for long, short, number in _ASKED.findall(text)}
    return {name: number for what, number in asked.items() for name in _OF_SLURM[what]}


def constants_of(commands: Sequence[Sequence[Word]], given: Mapping[str, str] = {}) -> dict[str, str]:
    """Variables that are set exactly once, to one word without variables; and those that are given."""
    found: dict[str, str | None] = {**given}
    for words in commands:
        for word in words:
            if words[0].text == ":" or ":=" in (word.text or ""):  # : "${TP:=4}"
                for default in _GIVEN.finditer((word.text or "")[:_MAX_EXPANDED]):
                    found.setdefault(default[1], default[2])
            match = ASSIGNED.fullmatch(word.text or "")
            if match is None:
                continue
            name, adds, value = match.groups()
            value = computed(_filled(value, found, name), found)
            plain = not adds and "$" not in value and "`" not in value and len(value) <= _MAX_EXPANDED
            found[name] = value if plain and name not in found else None
        if words[0].text in ("for", "read", "while", "select"):
            found.update((w.text, None) for w in words[1:2] if w.text)
    one = {name: value for name, value in found.items() if value is not None}
    return {name: value for name, value in one.items() if not re.search(r"\s|^-", value)}


_DEFAULT = re.compile(r"\$\{(\w+):?[-=]([^${}]*)\}")
"""The innermost of several."""
_MAX_NESTED = 8
_OF_THE_SCHEDULER = re.compile(r"(?:SLURM|OMPI|PMI|PALS|PET|LSB)_\w+")
"""Their default of 1 is for a trial without the scheduler: the job's number is in no script."""


def _filled(text: str, variables: Mapping[str, str | None], own: str = "") -> str:
    """A text with known variables in it; one that the script does not set has the default that it is given.
    `own` is the name that is being set: what it was before is unknown, so that its default holds."""

    def default(match: re.Match[str]) -> str:
        name = match[1]
        if name != own and name in variables:
            known = variables[name]
            return f"${{{name}}}" if known is None else known or match[2]
        instead = match[2].strip("\"'")
        trial = instead == "1" and _OF_THE_SCHEDULER.fullmatch(name)
        return f"${{{name}}}" if trial else instead

    for _ in range(_MAX_NESTED):
        filled = _VARIABLE.sub(lambda m: variables.get(m[1] or m[2]) or m.group(), text)
        filled = _DEFAULT.sub(default, filled)
        if filled == text or len(filled) > 4 * _MAX_EXPANDED:
            return text
        text = filled
    return text


def expanded(word: Word, variables: dict[str, str]) -> Word:
    """A word with known variables in it."""
    text = word.text or ""
    if "$" not in text or len(text) > _MAX_EXPANDED:
        return word
    text = _SUM.sub(lambda m: computed(m.group(), variables), text)
    filled, written = _filled(text, variables), _filled(word.written, variables)
    return Word(filled[: 4 * _MAX_EXPANDED], word.line, written[: 4 * _MAX_EXPANDED])


def computed(value: str, known: Mapping[str, str | None]) -> str:
    """`$((1024 * n))` as a number, where all in it is known; as it is otherwise."""
    whole = _SUM.fullmatch(value)
    if whole is None:
        return value
    parts = _PART.findall(re.sub(r"[${}]", " ", whole[1]))
    texts = [part if not part[:1].isalpha() and part[:1] != "_" else known.get(part) for part in parts]
    tree = [text for text in texts if text and (text in "+-*/()" or _is_number(text))]
    if len(tree) < len(texts):
        return value
    try:
        number = _value(ast.parse(" ".join(tree), mode="eval").body)
    except (SyntaxError, AttributeError, KeyError, ZeroDivisionError, RecursionError):
        return value
    return str(number) if abs(number) < 10**_MAX_DIGITS else value


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def _value(node: Any) -> int:
    """Of whole numbers and the four operators; AttributeError or KeyError where there is anything else."""
    if isinstance(node, ast.Constant):
        return int(str(node.value))
    return int(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
