"""What the user says of a job: `--set tp=8 pp=4 model=llama3-8b`, or a YAML or JSON file with such keys.

Keys are the short names of the field or megatron-core's own. A key that nobody knows is an error where it was
typed, and counted where it stands in a file, since a framework's configuration holds hundreds of others.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from perfdoc.kept import table
from perfdoc.profiling.flops import check_shape
from perfdoc.profiling.gpus import gpu_model
from perfdoc.profiling.manifest import ModelShape
from perfdoc.traces.job_facts import JobFacts, derived_sizes
from perfdoc.traces.known_models import known_models, model_named

_MAX_SIZE = 10**15
_MAX_FLOPS = 10**27
_MAX_PEAK = 10**18
_DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "mxfp8": "fp8"}
_DTYPES |= {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "32": "fp32"}
_DTYPES |= {f"{d}{sign}mixed": d for d in ("bf16", "fp16", "fp8") for sign in "-_"}
_RECOMPUTE = ("none", "selective", "full")


def _count(value: Any) -> int:
    number = float(str(value).replace("_", "")) if not isinstance(value, bool) else math.nan
    if not (number.is_integer() and 1 <= number <= _MAX_SIZE):
        raise ValueError(f"is no whole number from 1 to {_MAX_SIZE:.0e}")
    return int(number)


def _count_or_none(value: Any) -> int:
    return 0 if str(value) == "0" else _count(value)


def _operations(value: Any) -> int:
    """FLOPs: whole, and far beyond any count of ranks or widths."""
    number = _positive(value)
    if number > _MAX_FLOPS:
        raise ValueError(f"is more than {_MAX_FLOPS:.0e}")
    return round(number)


def _positive(value: Any) -> float:
    number = float(value) if not isinstance(value, bool) else math.nan
    if not 0 < number < math.inf:
        raise ValueError("is no number above 0")
    return number


def _flag(value: Any) -> bool:
    text = str(value).lower()
    if text not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise ValueError("is neither true nor false")
    return text in ("true", "1", "yes", "on")


def _dtype(value: Any) -> str:
    if str(value).lower() not in _DTYPES:
        raise ValueError(f"is none of {', '.join(_DTYPES)}")
    return _DTYPES[str(value).lower()]


def _recompute(value: Any) -> str:
    text = str(value).lower() if value is not None else "none"
    if text not in _RECOMPUTE:
        raise ValueError(f"is none of {', '.join(_RECOMPUTE)}")
    return text


def _peak(value: Any) -> float:
    peak = _positive(value)
    if not 1 <= peak <= _MAX_PEAK:
        raise ValueError(f"is not from 1 to {_MAX_PEAK:.0e} FLOP/s of one device")
    return peak


def _gpu(value: Any) -> str:
    for name in (str(value).replace("_", " "), f"Instinct {value}"):
        if gpu_model(name) is not None:
            return name
    raise ValueError("is no GPU that perfdoc knows, such as H100, B200 or MI300X")


def _tera(value: Any) -> float:
    return _peak(_positive(value) * 1e12)


_READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {"count": _count, "count_or_none": _count_or_none, "flag": _flag, "dtype": _dtype}
    | {"recompute": _recompute, "operations": _operations, "peak": _peak, "gpu": _gpu}
)
_JOB, _MODEL = (
    {field: (_READERS[reader], aliases) for field, (reader, *aliases) in fields.items()}
    for fields in table(Path(__file__).resolve().with_name("given_facts.yaml")).values()
)
"""Field of JobFacts, or of the model's shape → (reader of its value, other names)."""
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        alias: field
        for fields in (_JOB, _MODEL)
        for field, (_, aliases) in fields.items()
        for alias in (field, *aliases)
    }
)
_SHAPE_NEEDS = (
    *("layers", "hidden_size", "ffn_hidden_size", "attention_heads", "query_groups", "vocabulary"),
    "gated_mlp",
)


def given_facts(
    settings: Sequence[str] = (),
    config: Path | None = None,
    model_config: Path | None = None,
    stated: Mapping[str, Any] | None = None,
) -> JobFacts:
    """Facts from `key=value` words and files; words go before the files, and a model's own configuration
    before what the job's says of the model. `stated`: what is known of the file of the job already, by field;
    keys of the file are then read where it does not say them, if that is YAML or JSON.

    Raises ValueError, one line, for what cannot be read, is out of range or contradicts itself.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    left_out: tuple[str, ...] = ()
    unclear: frozenset[str] = frozenset()
    if config is not None:
        try:
            left_out, unclear = _take_file(values, sources, config)
        except ValueError:
            if not stated:
                raise
        unclear -= (stated or {}).keys()
        for field, value in (stated or {}).items():
            values[field] = known_models()[value] if field == "model" else value
            sources[field] = f"--config {config.name}"
        if not values and not left_out:
            raise ValueError(
                f"{config}: holds no key that perfdoc knows, such as {', '.join(list(_JOB)[:6])}."
            )
    name = ""
    if model_config is not None:
        unclear -= _MODEL.keys()
        name = _take_model(values, sources, model_config)
    said: dict[str, str] = {}
    for word in settings:
        for part in word.replace(",", " ").split():
            key, equals, value = part.partition("=")
            if not equals or not value:
                raise ValueError(f"--set {part!r}: write key=value, such as tp=8.")
            if key != "model" and key not in _NAMES:
                near = difflib.get_close_matches(key, [*_NAMES, "model"], n=1)
                hint = (
                    f"; did you mean {near[0]}?"
                    if near
                    else f". Keys: {', '.join((*_shown(_JOB), 'model', *_shown(_MODEL)))}."
                )
                raise ValueError(f"--set {part!r}: there is no key {key!r}{hint}")
            field = _NAMES.get(key, key)
            if (before := said.setdefault(field, value)) != value:
                raise ValueError(f"--set {part}: {field} is given before as {before}; give it once.")
            _take(values, sources, field, key, value, "--set")
    if model_config is not None and "model" in said:
        raise ValueError(
            f"--set model={said['model']}: --model-config gives the model too; give one of them."
        )
    if model_config is not None and "vocabulary" not in values:
        raise ValueError(
            f"--model-config {model_config}: does not say the vocabulary; add --set vocab_size=…"
        )
    return replace(_facts(values, sources, unclear, name), left_out=left_out)


def _take_model(values: dict[str, Any], sources: dict[str, str], path: Path) -> str:
    """The shape that a model's own configuration says, in place of any other; its name."""
    from perfdoc.traces.model_config.read import read_model_config

    shape_name, fields, source = read_model_config(path)
    for name in ("model", *_MODEL):
        values.pop(name, None)
        sources.pop(name, None)
    for name, value in fields.items():
        values[name] = value if isinstance(value, bool) else _MODEL[name][0](value)
        sources[name] = source
    return shape_name


def _shown(table: Mapping[str, tuple[Any, tuple[str, ...]]]) -> Iterator[str]:
    """Every key of a table, with its shortest other name where that is shorter: `sequence_length (seq)`."""
    for name, (_, others) in table.items():
        short = min(others, key=len, default=name)
        yield f"{name} ({short})" if len(short) < len(name) else name


def _take_file(
    values: dict[str, Any], sources: dict[str, str], config: Path
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Every known key of a file; returns those that are left out, since they say several things or nothing
    that can be read. A framework's file holds the same names for several models. Then: what they stand for,
    but for those that say 0, which is none."""
    found: dict[str, dict[str, Any]] = {}
    spelled: dict[str, str] = {}
    for key, value in _of_file(config):
        name = key if key == "model" else _NAMES.get(key)
        if name is not None and value is not None and not isinstance(value, (Mapping, list)):
            found.setdefault(name, {})[str(value)] = value
            spelled[name] = key
    left_out, unclear = [], set()
    for name, said in found.items():
        try:
            if len(said) > 1:
                raise ValueError("has several values")
            _take(values, sources, name, spelled[name], next(iter(said.values())), f"--config {config.name}")
        except ValueError:
            left_out.append(spelled[name])
            if set(said) != {"0"}:
                unclear.add(name)
    return tuple(sorted(left_out)), frozenset(unclear)


def _take(
    values: dict[str, Any], sources: dict[str, str], name: str, key: str, value: Any, source: str
) -> None:
    if name == "model":
        model = model_named(str(value))
        if model is None:
            near = difflib.get_close_matches(str(value), known_models(), n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known_models())}."
            raise ValueError(f"{source} model={value}: is not known{hint}")
        values[name] = known_models()[model]
    else:
        read = _tera if key == "peak_tflops" else (_JOB.get(name) or _MODEL[name])[0]
        try:
            values[name] = read(value)
        except (ValueError, OverflowError) as error:
            reason = str(error) if str(error).startswith("is ") else "is not a number"  # Python's own words
            raise ValueError(f"{source} {key}={value}: {reason}.") from error
    sources[name] = source


def _of_file(path: Path) -> Iterable[tuple[str, Any]]:
    """Every key of a file with its value, nested ones by their last name."""
    from perfdoc.traces.model_config.read import read_document

    document = read_document(path)
    todo: list[Any] = [document]
    seen: set[int] = set()
    while todo:  # by identity, because anchors may make a file of a few bytes endless
        mapping = todo.pop(0)
        if id(mapping) in seen:
            continue
        seen.add(id(mapping))
        for key, value in mapping.items():
            yield str(key), value
            if isinstance(value, Mapping):
                todo.append(value)


def _facts(
    values: dict[str, Any], sources: dict[str, str], unclear: frozenset[str], name: str = ""
) -> JobFacts:
    job = {name: values[name] for name in _JOB if name in values}
    job |= derived_sizes(job)
    model = {name: values[name] for name in _MODEL if name in values}
    shape = values.get("model")
    # What a file leaves open must not count as the default: two models' numbers of experts are not none.
    unclear &= _MODEL.keys() - model.keys()
    if shape is None and not unclear and all(name in model for name in _SHAPE_NEEDS):
        model.setdefault("kv_channels", model["hidden_size"] // model["attention_heads"])
        shape = ModelShape(name=name, sequence_length=0, **model)
    elif shape is not None:
        shape = msgspec.structs.replace(shape, **model)
    elif model:
        missing = [n for n in (*_SHAPE_NEEDS, *sorted(unclear)) if n not in model]
        if any(sources[n] == "--set" for n in model):
            raise ValueError(f"--set {next(iter(model))}: a model's shape needs {', '.join(missing)} too.")
    if shape is not None:
        check_shape(shape)
        if job.get("sequence_length"):
            shape = msgspec.structs.replace(shape, sequence_length=job["sequence_length"])
        job["model"] = shape
        sources.setdefault("model", next((sources[n] for n in model), ""))
    for name in job:
        sources.setdefault(name, "derived")
    return JobFacts(**job, sources={n: s for n, s in sources.items() if n in job})
