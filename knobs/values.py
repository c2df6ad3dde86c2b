"""Reading the value of a setting as its knob wants it."""

from __future__ import annotations

import math
from typing import Final

from perfdoc.knobs.knob import LISTS, Knob, Value
from perfdoc.knobs.naming.nearest import SHORTEST_AT_PLACE, nearest
from perfdoc.knobs.pipeline_layout import LAYOUT, WRITTEN
from perfdoc.patterns import pattern_of

MAX_TEXT = 4096
"""Characters of one value; no setting needs more."""


class Opaque:
    """A value that the file does not hold: a variable, a call, a placeholder."""


OPAQUE: Final = Opaque()
Raw = str | tuple[str, ...] | bool | None | Opaque
"""A value as a reader found it: text, a list of texts, True for a flag without a value, None for null."""

_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_NULL = frozenset({"null", "none", "~", ""})
OFF = _FALSE | _NULL
"""Words, in small letters, of a switch that is off or not set."""
_DTYPES = {"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
_DIGITS = pattern_of(r"[-+]?\d[\d_]*")
_SET_AT_START = {"nproc_per_node": pattern_of(r"auto|gpu|cpu|xpu"), "nnodes": pattern_of(r"\d{1,9}:\d{1,9}")}
"""What torchrun takes besides a number, and makes one of on the machine."""
_PATTERN = pattern_of(r"['\"]?(?=[^0-9]{0,9}[0-9])[\[\]()*+,0-9 ]{1,2000}['\"]?")
_PLACEHOLDER = pattern_of(r"^<|<.*>|\$|\$?\{.*\}|^\?\?\?$|…|^\.\.\.$|^lambda |\(")


def read_value(knob: Knob, raw: Raw) -> Value | Opaque:
    """A raw value by the knob's type. Raises ValueError, in words, for a wrong type or range."""
    if isinstance(raw, Opaque) or knob.type in ("any", "command"):
        return OPAQUE
    if raw is True and knob.type != "bool":
        return OPAQUE  # a flag whose value the reader did not find
    texts = _texts(raw)
    if knob.id == LAYOUT and len(texts) == 1 and WRITTEN.fullmatch(texts[0].strip()):
        return texts[0].strip()  # its commas part no list, its parentheses are no call's
    if knob.id == "moe_layer_freq" and len(texts) == 1 and _PATTERN.fullmatch(texts[0]):
        return texts[0].strip("'\"")  # a pattern of 0 and 1, whose brackets are no call's
    if any((len(t) > MAX_TEXT and not _endless(knob, t)) or _PLACEHOLDER.search(t[:MAX_TEXT]) for t in texts):
        return OPAQUE
    if len(texts) == 1 and knob.id in _SET_AT_START and _SET_AT_START[knob.id].fullmatch(texts[0].strip()):
        return OPAQUE
    word = raw.strip().lower() if isinstance(raw, str) else None
    if word == "none" and "none" in knob.choices:
        return ("none",) if knob.type == "list" else "none"
    if raw is None or (word is not None and word in _NULL and raw not in knob.choices):
        return None if knob.nullable else OPAQUE
    if knob.type in LISTS:
        return _list(knob, raw, texts)
    if isinstance(raw, tuple):
        if len(texts) != 1:
            raise ValueError(f"takes {_a(knob)}, not a list")
        return _one(knob, texts[0])
    return _one(knob, str(raw))


def check_value(knob: Knob, value: Value) -> str:
    """What is wrong with a typed value by type, choices and range; empty where nothing is."""
    if value is None:
        return "" if knob.nullable else "is not null"
    try:
        raw = tuple(str(v) for v in value) if isinstance(value, tuple) else str(value)
        read = read_value(knob, raw)
    except ValueError as error:
        return str(error)
    return "" if read == value else f"takes {_a(knob)}"


def allowed(knob: Knob) -> str:
    """Type and range in words: `int, at least 1, or null`."""
    words = [knob.type.replace("_", " ")]
    if knob.choices:
        words.append("one of " + ", ".join(_shown(c) for c in knob.choices))
    if knob.usual:
        words.append("such as " + ", ".join(knob.usual))
    if knob.min is not None and knob.max is not None:
        words.append(f"{knob.min:g} to {knob.max:g}")
    elif knob.min is not None:
        words.append(f"at least {knob.min:g}")
    elif knob.max is not None:
        words.append(f"at most {knob.max:g}")
    if knob.unit:
        words.append(f"in {knob.unit}")
    return ", ".join(words) + (", or null" if knob.nullable else "")


def _texts(raw: Raw) -> tuple[str, ...]:
    if raw is None or isinstance(raw, Opaque):
        return ()
    return raw if isinstance(raw, tuple) else (str(raw),)


def _list(knob: Knob, raw: Raw, texts: tuple[str, ...]) -> Value:
    if isinstance(raw, str):
        inner = raw.strip().removeprefix("[").removesuffix("]")
        texts = tuple(t.strip().strip("'\"") for t in pattern_of(r"[,\s]+").split(inner) if t.strip())
        if knob.type.endswith("_or_list") and len(texts) == 1 and "[" not in raw:
            return _one(knob, texts[0])
    elif knob.type.endswith("_or_list") and len(texts) == 1:
        return _one(knob, texts[0])
    return tuple(_element(knob, t) for t in texts)


def _element(knob: Knob, text: str) -> float | str:
    if knob.type == "int_list":
        value = _integer(knob, text)
        _in_range(knob, value)
        return value
    return _real(knob, text) if knob.type == "float_or_list" else _choice(knob, text)


def _one(knob: Knob, text: str) -> bool | int | float | str:
    text = text.strip()
    if knob.type == "bool":
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise ValueError("takes true or false")
    if knob.type == "int":
        number = _integer(knob, text)
        _in_range(knob, number)
        if knob.choices and number not in knob.choices:
            raise ValueError(f"takes one of {', '.join(str(c) for c in knob.choices)}")
        return number
    if knob.type in ("float", "float_or_list"):
        return _real(knob, text)
    if knob.type == "dtype":
        name = text.lower().removeprefix("torch.")
        return _choice(knob, _DTYPES.get(name, name))
    return _choice(knob, text)


def _endless(knob: Knob, text: str) -> bool:
    """A number longer than any text that is looked into: nothing has to be looked for in it."""
    return knob.type in ("int", "int_list", "float", "float_or_list") and _DIGITS.fullmatch(text) is not None


def _integer(knob: Knob, text: str) -> int:
    if pattern_of(r"[-+]?\d[\d_]{0,30}").fullmatch(text):
        return int(text)
    if _DIGITS.fullmatch(text):
        raise ValueError(f"takes a whole number, not one of {len(text)} digits")
    try:
        real = float(text)
    except ValueError:
        raise ValueError("takes a whole number") from None
    if real.is_integer() and abs(real) < 1e15:
        raise ValueError(f"takes a whole number; write {int(real)}")
    raise ValueError("takes a whole number")


def _real(knob: Knob, text: str) -> float:
    try:
        real = float(text.replace("_", ""))
    except ValueError:
        raise ValueError("takes a number") from None
    if math.isnan(real) or (math.isinf(real) and _DIGITS.fullmatch(text)):
        raise ValueError("takes a number")
    _in_range(knob, real)
    return real


def _in_range(knob: Knob, number: float) -> None:
    if (knob.min is not None and number < knob.min) or (knob.max is not None and number > knob.max):
        raise ValueError(f"takes {allowed(knob)}")


def _choice(knob: Knob, text: str) -> str:
    text = pattern_of(r"^\w*(Backend|Scope|Strategy)\.").sub("", text)  # AttnBackend.flash
    if not knob.choices:
        known = {value.upper(): value for value in knob.usual}
        near = nearest(text.upper(), known, SHORTEST_AT_PLACE)
        same_version = near is not None and _DIGITS.findall(near) == _DIGITS.findall(text)
        if near and near != text.upper() and same_version:
            raise ValueError(f"is {text}, which is no known value; {known[near]} is")
        return text
    for choice in knob.choices:
        if text == choice or (knob.topic == "environment" and text.upper() == str(choice).upper()):
            return str(choice)
    raise ValueError(f"takes one of {', '.join(_shown(c) for c in knob.choices)}")


def _shown(choice: object) -> str:
    return str(choice).lower() if isinstance(choice, bool) else str(choice)


def _a(knob: Knob) -> str:
    return allowed(knob)


def as_text(value: object) -> str:
    """A setting as reports write it.

    >>> as_text(True), as_text(None), as_text([1, 2])
    ('true', 'null', '1,2')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(as_text(v) for v in value) or "[]"
    return "null" if value is None else str(value)
