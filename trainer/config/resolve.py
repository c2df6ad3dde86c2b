"""From a configuration's name, a file and overrides to one checked configuration with origins."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

import msgspec
import yaml

from perfdoc.knobs.knob import DIALECT_TITLES, Dialect
from perfdoc.knobs.load import ELSEWHERE, SHORT_NAMES, catalogue
from perfdoc.knobs.naming.meaning import names_of
from perfdoc.profiling.plain_yaml import PlainLoader
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.config.tables import TABLES


def why_refused(name: str) -> str:
    """Why a knob of the catalogue is no setting here; empty for what the catalogue does not know."""
    knob = catalogue().get(name)
    if knob is not None and knob.type == "command":
        return f"it is done outside a configuration: {knob.command}"
    if knob is not None and knob.topic in ELSEWHERE:
        return f"it is a setting of {', '.join(sorted({DIALECT_TITLES[s.dialect] for s in knob.spellings}))}"
    if knob is None or name in KEYS or name in TABLES.refused:
        return str(TABLES.refused.get(name, ""))
    variable = next((s.name for s in knob.spellings if s.dialect == "env"), "")
    return f"set it in the environment: export {variable}=…" if variable else "nothing here reads it"


def name_here(name: str) -> str:
    """Canonical id of what a framework, an older version or a guide calls otherwise; empty if nobody does.

    >>> name_here("profile_start_step")
    'profile_step_start'
    """
    leaf = name.rpartition(".")[2]
    if leaf in catalogue() and catalogue()[leaf].topic in ELSEWHERE:
        return leaf
    dialects: tuple[Dialect | None, ...] = (None, "megatron_bridge", "nemo", "verl")
    for dialect in dialects:
        names = names_of(dialect)
        if leaf in names.by_leaf:
            return names.by_leaf[leaf].id
        if leaf in names.former:
            return names.former[leaf][0].id
    flag = names_of("megatron_lm").by_path.get("--" + leaf.removeprefix("--").replace("_", "-"))
    return "" if flag is None else flag[0].id


MAX_CONFIG_BYTES = 1_000_000


class _Loader(PlainLoader):
    """A key given twice is an error; `1e-4` is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                line = key_node.start_mark.line + 1
                raise ValueError(f"line {line}: keys are plain words, not {key!r}")
            if key in seen:
                raise ValueError(f"line {key_node.start_mark.line + 1}: {key} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a dot in the mantissa and a sign in the exponent; people write 1e-4 and 3e8.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_value(text: str) -> Any:
    """The value after the `=` of an override: a YAML scalar or flow list. Raises ValueError."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{text!r} is not a value: {_first_line(error)}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """A configuration file as a mapping. Raises ValueError with the path and the line."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"{path}: more than {MAX_CONFIG_BYTES} bytes is no configuration")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text") from error
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {_first_line(error)}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: nested too deeply") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected `section: {{key: value}}`")
    return data


def _first_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)


CONFIGS = Path(__file__).resolve().parents[1] / "configs"
DEFAULT_CONFIG = "tiny"

SECTIONS: Mapping[str, type] = MappingProxyType(get_type_hints(Config))
"""Section name → its dataclass."""
KEYS: Mapping[str, str] = MappingProxyType(
    {entry.name: section for section, cls in SECTIONS.items() for entry in dataclasses.fields(cls)}
)
"""Setting → its section. Names are unique over the sections (a test holds this)."""


WARMUP, STEPS = "optimizer.lr_warmup_iters", "training.train_iters"
_SHORTENED = f"half of {STEPS}"


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig:
    """A checked configuration and, per dotted key, where its value came from."""

    name: str
    config: Config
    origins: Mapping[str, str]
    """`section.key` → `default`, `file NAME` or `override`."""

    def rows(self) -> list[tuple[str, Any, str]]:
        """(dotted key, value, origin) in the schema's order, for `perfdoc config show`."""
        values = msgspec.to_builtins(self.config)
        return [
            (f"{section}.{entry.name}", values[section][entry.name], self.origins[f"{section}.{entry.name}"])
            for section, cls in SECTIONS.items()
            for entry in dataclasses.fields(cls)
        ]

    @property
    def shortened(self) -> str:
        """What was made to fit a short run, in words; empty where nothing was."""
        if self.origins[WARMUP] != _SHORTENED:
            return ""
        return f"{WARMUP} = {self.config.optimizer.lr_warmup_iters}: {_SHORTENED}, which is a short run"

    def to_json(self) -> str:
        """One JSON object that `from_json` reads back to an equal configuration."""
        document = {
            "name": self.name,
            "config": msgspec.to_builtins(self.config),
            "origins": dict(self.origins),
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ResolvedConfig:
        """The inverse of `to_json`. Raises ValueError."""
        try:
            document = json.loads(text)
            name, values, origins = document["name"], document["config"], document["origins"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"not a resolved configuration: {error}") from error
        if not isinstance(name, str) or not isinstance(origins, dict) or not isinstance(values, dict):
            raise ValueError("not a resolved configuration: name, config and origins have other types")
        flat = dict(_flatten(values, "resolved configuration"))
        return cls(
            name=name,
            config=_checked(flat),
            origins={key: str(origins.get(key, "default")) for key in _all_keys()},
        )


def named_configs() -> list[str]:
    """The names of the configurations that ship."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def described_configs() -> dict[str, str]:
    """Name → the first sentence of the comment that each configuration begins with."""
    found = {}
    for name in named_configs():
        lines = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        comment = " ".join(
            line.removeprefix("#").strip() for line in takewhile(lambda x: x[:1] == "#", lines)
        )
        found[name] = comment.partition(". ")[0].removesuffix(".")
    return found


def resolve(name_or_path: str = DEFAULT_CONFIG, overrides: Iterable[str] = ()) -> ResolvedConfig:
    """Read a shipped configuration by name, or a YAML file by path, and apply `key=value` overrides.

    Args:
        name_or_path: a name of `named_configs()`, or a path (anything with a slash or a .yaml ending).
        overrides: `section.key=value` or `key=value`; values are YAML (`null`, `true`, `1e-4`, `[a, b]`).

    Raises:
        ValueError: one line with the dotted key, what is wrong and the nearest known key or name.
    """
    path = _find(name_or_path)
    origin = f"file {path.stem}" if path.parent == CONFIGS else f"file {name_or_path}"
    values: dict[str, Any] = {}
    origins = dict.fromkeys(_all_keys(), "default")
    for key, value in _flatten(read_yaml(path), str(name_or_path)):
        values[key] = value
        origins[key] = origin
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise ValueError(f"{override!r}: an override is key=value")
        dotted = _dotted(key.strip(), "override")
        try:
            values[dotted] = parse_value(text.strip())
        except ValueError as error:
            raise ValueError(f"{dotted}: {error}") from error
        origins[dotted] = "override"
    _shorten_warmup(values, origins)
    return ResolvedConfig(name=path.stem, config=_checked(values), origins=MappingProxyType(origins))


def _shorten_warmup(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Half of a run that an override made shorter than its configuration's warm-up, if none is asked for."""
    steps, warmup = values.get(STEPS), values.get(WARMUP)
    if origins[STEPS] != "override" or origins[WARMUP] == "override" or "optimizer.lr_decay_iters" in values:
        return
    if isinstance(steps, int) and isinstance(warmup, int) and 0 < steps <= warmup:
        values[WARMUP] = steps // 2
        origins[WARMUP] = _SHORTENED


def _find(name_or_path: str) -> Path:
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        return Path(name_or_path)
    names = named_configs()
    if (name := name_or_path.lower().replace("-", "_")) in names:
        return CONFIGS / f"{name}.yaml"
    raise ValueError(
        f"no configuration named {name_or_path!r}{_nearest(name_or_path, names)}; "
        f"there are {', '.join(names)}, or give the path of a .yaml file"
    )


def _all_keys() -> list[str]:
    return [f"{section}.{key}" for key, section in KEYS.items()]


def _flatten(data: Mapping[str, Any], where: str) -> Iterable[tuple[str, Any]]:
    for section, body in data.items():
        if section not in SECTIONS:
            if section in KEYS:
                raise ValueError(f"{where}: {section} belongs in the section {KEYS[section]}")
            raise ValueError(f"{where}: unknown section {section}{_nearest(section, list(SECTIONS))}")
        if body is None:
            continue
        if not isinstance(body, dict):
            raise ValueError(f"{where}: {section} is a section; expected `{section}: {{key: value}}`")
        for key, value in body.items():
            yield _dotted(f"{section}.{key}", where), value


def _dotted(key: str, where: str) -> str:
    """`section.key` for a dotted or a bare key, or for what people call it (tp, mbs)."""
    section, separator, name = key.rpartition(".")
    name = SHORT_NAMES.get(name, name)
    if not separator and name in KEYS:
        return f"{KEYS[name]}.{name}"
    if separator and KEYS.get(name) == section:
        return f"{section}.{name}"
    if separator and name in KEYS:
        raise ValueError(f"{where}: unknown key {key}; did you mean {KEYS[name]}.{name}?")
    known = name if name in TABLES.refused else name_here(name)
    if why := why_refused(known or name):
        raise ValueError(f"{where}: {key} is not a setting of this trainer: {why}")
    if known in KEYS:
        raise ValueError(f"{where}: {key} is {KEYS[known]}.{known} here")
    candidates = _all_keys() if separator else list(KEYS)
    raise ValueError(f"{where}: unknown key {key}{_nearest(key, candidates)}")


def _nearest(word: str, candidates: list[str]) -> str:
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _checked(values: Mapping[str, Any]) -> Config:
    """Build the dataclasses one value at a time, so that an error names its dotted key."""
    sections: dict[str, Any] = {}
    for section, cls in SECTIONS.items():
        hints = get_type_hints(cls, include_extras=True)
        arguments = {}
        for entry in dataclasses.fields(cls):
            dotted = f"{section}.{entry.name}"
            if dotted in values:
                arguments[entry.name] = _convert(values[dotted], hints[entry.name], dotted)
        sections[section] = cls(**arguments)
    return Config(**sections)


def _convert(value: Any, target: Any, dotted: str) -> Any:
    try:
        converted = msgspec.convert(value, target)
    except msgspec.ValidationError as error:
        raise ValueError(f"{dotted} = {value!r}: {error}") from error
    if isinstance(converted, float) and not abs(converted) < float("inf"):
        raise ValueError(f"{dotted} = {value!r}: expected a finite number")
    return converted
