"""Settings as text in a dialect, ready to paste."""

from __future__ import annotations

import re
from typing import Literal

from perfdoc.knobs.knob import Dialect, Knob, Value
from perfdoc.knobs.load import catalogue

Way = Literal["option", "variable", "left out", "code", ""]
"""Where a setting is written: on a command line or in a configuration's file; in the environment; nowhere, an
option goes; in the trainer's own program. Empty: that framework has no such knob."""
_TORCHS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""torchtitan names formats as PyTorch does."""


def as_written(name: str, value: Value, dialect: Dialect | None) -> str:
    """How to set a knob in a dialect; empty where that framework has no such knob.

    >>> as_written("apply_rope_fusion", False, "megatron_lm")
    '--no-rope-fusion'
    """
    return way_and_words(name, value, dialect)[1]


def way_and_words(name: str, value: Value, dialect: Dialect | None) -> tuple[Way, str]:
    """As `as_written`, with where that is written."""
    knob = catalogue()[name]
    if knob.spelled("env"):
        variable = knob.spelled("env")[0].name
        return "variable", f"unset {variable}" if value is None else f"{variable}={_text(value)}"
    if dialect == "env":
        return "", ""  # a name that no program looks for in its environment
    if dialect in (None, "perfdoc"):
        return "option", f"{name}={_text(value)}"
    spellings = knob.spelled(dialect or "")
    if not spellings:
        return _under_its_old_name(knob, value, dialect or "")
    path = spellings[0].name
    if dialect != "megatron_lm":
        titans = dialect == "torchtitan" and knob.type == "dtype"
        words = at_path(path, _TORCHS.get(str(value), value) if titans else value)
        return "code" if _in_code(path) else "option", words
    if knob.type == "bool":
        for spelling in spellings:
            if (spelling.means is None and value is True) or spelling.means is value:
                return "option", spelling.name
        return "left out", "leave out " + " and ".join(s.name for s in spellings)
    if value is None:
        return "left out", f"leave out {path}"
    words = " ".join(_text(v) for v in value) if isinstance(value, tuple) else _quoted(value)
    return "option", f"{path} {words}"


def _under_its_old_name(knob: Knob, value: Value, dialect: str) -> tuple[Way, str]:
    """Where a framework still has a switch for one value of what others name anew; else empty."""
    for former in knob.former:
        for old, new in former.values.items():
            if dialect in former.current and new == value:
                return "option", f"{_OF_THE_MODEL[dialect]}{former.name}={str(old).lower()}"
    return "", ""


_OF_THE_MODEL = {"nemo": "model.config."}
"""Where the switches of old names stand."""
_OF_THE_SHELL = r"[|*();&<>\s]"


def at_path(path: str, value: Value) -> str:
    """A value at a dotted path: an argument where the path starts at a class, else an override.

    >>> at_path("TransformerConfig.cuda_graph_impl", "local")
    "TransformerConfig(cuda_graph_impl='local')"
    """
    if _in_code(path):
        owner, _, field = path.rpartition(".")
        return f"{owner}({field}={list(value) if isinstance(value, tuple) else value!r})"
    adds = "++" if ".override_" in path else ""  # a key that verl's own configuration does not have
    return f"{adds}{path}={_quoted(value)}"


def _in_code(path: str) -> bool:
    """Whether it starts at a class or a function, which takes it as an argument."""
    owner, _, _ = path.rpartition(".")
    return bool(owner) and "." not in owner and (owner[0].isupper() or owner == "initialize_model_parallel")


def like(written: str, name: str) -> str:
    """A path with the beginning that the user's own names have: `recipe.model.config.…`."""
    from perfdoc.knobs.naming.places import STEM

    stem = STEM.match(name)
    return stem[0] + written if stem and written[:1].islower() and "=" in written else written


def default_in(knob: Knob, dialect: Dialect) -> str:
    """What holds where it is not set, in words."""
    if dialect in knob.depends:
        return "depends on other settings"
    return _text(knob.defaults[dialect]) if dialect in knob.defaults else ""


def _quoted(value: Value) -> str:
    """A value that a shell leaves as it is: a layout of stages holds `|` and `*`."""
    text = _text(value)
    return f"'{text}'" if isinstance(value, str) and re.search(_OF_THE_SHELL, text) else text


def _text(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ",".join(_text(v) for v in value) + "]"
    return str(value)
