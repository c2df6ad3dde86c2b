"""What ran, as a log says it: lengths, layout, batch, model, precision and devices.

Megatron-LM lists its arguments, Megatron-Bridge and NeMo 1 their configuration as YAML, the others say the
most important in sentences and in JSON. A log with two values of one fact is of two jobs. Names are those of
Megatron's arguments, so that a reader of any log knows them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

from perfdoc.kept import table
from perfdoc.patterns import pattern_of
from perfdoc.traces.training_logs.lines import SaidFact
from perfdoc.traces.training_logs.said_yaml import Dump, scalar
from perfdoc.traces.training_logs.text import whole_of

WORLD, PRECISION = "layout.world_size", "config.precision"
_SAID = SimpleNamespace(**table(Path(__file__).resolve().with_name("said.yaml")))
_FLAGS = ("bf16", "fp16", "fp8", "fp8_recipe", "fp4")
_ARGUMENT = re.compile(r"(?:^|[\s:\]|])([a-z][a-z0-9_]{1,60}) \.{3,60} ([^\s]{1,60})\s*$")
_MEGATRON = re.compile(
    r"\b(using world size|(?:data|context|tensor-model|pipeline-model)-parallel size): ?([0-9]{1,7})"
)
_GROUPS = re.compile(
    r"All (tensor model|pipeline model|context|data) parallel group ranks: \[\[([0-9, ]{1,20000})\]"
)
_MESH = re.compile(r"Building device mesh with parallelism: ((?:[a-z_]{1,20}=[0-9]{1,7}(?:, )?){1,12})")
_OLD_MESH = re.compile(
    r"Building [0-9]-D device mesh with \[((?:'[a-z_]{1,20}'(?:, )?){1,8})\], \[([0-9, ]{1,60})\]"
)
_TITAN = re.compile(
    r"Trainer is initialized with local batch size ([0-9]{1,9}), global batch size ([0-9]{1,9}), gradient "
    r"accumulation steps [0-9]{1,9}, sequence length ([0-9]{1,9})\b"
)
_HF_DTYPE = re.compile(
    r"Process rank: [0-9]{1,7}, (?:world size: ([0-9]{1,7}), )?.{0,120}compute dtype: torch\.(\w{1,20})"
)
_TRAINING_ARGUMENT = re.compile(r"^\s{0,8}(bf16|fp16|max_length|max_seq_length)=(\w{1,20}),$")
_MODEL = re.compile(r"Model config (\w{1,80}) \{")
_JSON = re.compile(r'^\s{2}"([a-z_]{1,40})": "?([\w.]{1,60})"?,?$')
_TITAN_DTYPE = re.compile(r'"mixed_precision_param": "(\w{1,20})"')
_TYPES = MappingProxyType({"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"})
_OFF = ("false", "none", "null", "")
_LONGEST = 40_000


class Said:
    """Collects the facts of a log, in its order."""

    def __init__(self) -> None:
        self.contradiction = ""
        """Why the facts are of two jobs; empty where they are of one."""
        self._facts: dict[str, SaidFact] = {}
        self._aliased: dict[str, SaidFact] = {}
        self._flags: dict[str, str] = {}
        self._dump = Dump()
        self._accumulation = 0
        self._model_read = False
        self._in_model = False
        self._first_length: int | None = None

    def read(self, line: str) -> None:
        """Take a line that is no step's."""
        if len(line) > _LONGEST:
            return
        if (entry := self._dump.read(line)) is not None:
            self._configured(*entry)
            return
        self._json(line)
        if _ANY.search(line) is None:
            return
        if " ..." in line and (found := _ARGUMENT.search(line)) is not None:
            self._argument(found[1], found[2])
        for marker, (pattern, name) in _SAID.sentences.items():
            if marker in line and (found := pattern_of(pattern).search(line)) is not None:
                self._whole(name, found[1])
        for marker, (pattern, name) in _SAID.words.items():
            if marker in line and (found := pattern_of(pattern).search(line)) is not None:
                self._set(name, found[1])
        for marker, take in _TAKERS.items():
            if marker in line:
                take(self, line)

    def facts(self) -> dict[str, SaidFact]:
        """What was said, by name."""
        found = {**self._aliased, **self._facts}
        if (precision := _precision(self._flags)) and PRECISION not in found:
            found[PRECISION] = precision
        if self._first_length is not None:
            found.setdefault("config.seq_length", self._first_length)
        each, whole = found.get("config.micro_batch_size"), found.get("config.global_batch_size")
        if self._accumulation and isinstance(each, int) and isinstance(whole, int):
            replicas, rest = divmod(whole, each * self._accumulation or 1)
            if replicas and not rest:
                found.setdefault("config.data_parallel_size", replicas)
        return dict(sorted(found.items()))

    def _set(self, name: str, value: SaidFact) -> None:
        before = self._facts.setdefault(name, value)
        if before != value and not self.contradiction:
            fact = name.partition(".")[2]
            self.contradiction = f"says of two jobs what ran: {fact} is {before}, and later {value}"

    def _flag(self, key: str, word: str) -> None:
        """A setting of precision: one that is on in any part of a configuration is on."""
        if key not in self._flags or self._flags[key].lower() in _OFF:
            self._flags[key] = word

    def _whole(self, name: str, word: str, *, alias: bool = False) -> None:
        """A whole number, or that there is none of it. alias: another word for a fact, which gives way."""
        value: SaidFact | None = "none" if word in ("None", "null") else whole_of(word)
        if value is None:
            return
        if alias:
            self._aliased.setdefault(name, value)
        else:
            self._set(name, value)

    def _argument(self, key: str, word: str) -> None:
        """One of Megatron's arguments."""
        own, key = key, _SAID.same.get(key, key)
        if key == "world_size":
            self._whole(WORLD, word)
        elif key in _SAID.numbers:
            self._whole(f"config.{key}", word, alias=key != own)
        elif key in _FLAGS:
            self._flag(key, word)

    def _configured(self, path: tuple[str, ...], word: str) -> None:
        """One entry of a configuration in YAML: of Megatron-Bridge, or of NeMo 1."""
        room, key = path[0], _SAID.same.get(path[-1], path[-1])
        value = scalar(word)
        if room == "dataset" and len(path) == 2 and key == "seq_length":
            self._whole("config.seq_length", value)
        elif room == "model" and len(path) == 2 and key == "seq_length":
            # Of Megatron-Bridge the longest that the model takes; the data's length is what is trained.
            self._first_length = whole_of(value)
        elif room in ("model", "train") and len(path) == 2 and key in _SAID.numbers:
            self._whole(f"config.{key}", value, alias=key != path[-1])
        elif room in ("model", "mixed_precision") and len(path) == 2 and key in _FLAGS:
            self._flag(key, value)
        elif path == ("trainer", "precision"):
            self._flag("bf16", str("bf16" in value).lower())
            self._flag("fp16", str(value.startswith("16")).lower())

    def _groups(self, line: str) -> None:
        if (found := _GROUPS.search(line)) is not None:
            which = found[1].replace(" ", "_")
            name = f"{which}_parallel_size"
            self._set(f"config.{name}", found[2].count(",") + 1)

    def _sizes(self, line: str) -> None:
        for what, size in _MEGATRON.findall(line):
            name = what.replace("-", "_").replace(" size", "_size")
            self._whole(WORLD if what == "using world size" else f"config.{name}", size)

    def _mesh(self, line: str) -> None:
        if (found := _MESH.search(line)) is not None:
            sizes = dict(one.split("=") for one in found[1].rstrip(", ").split(", "))
        elif (found := _OLD_MESH.search(line)) is not None:
            sizes = dict(zip(found[1].replace("'", "").split(", "), found[2].split(", "), strict=False))
        else:
            return
        devices = 1
        for short, size in sizes.items():
            if (name := _MESH_NAMES.get(short)) is not None:
                self._whole(f"config.{name}", size)
            # Experts are spread over devices that the other dimensions count already.
            devices *= int(size) if short in _MESH_NAMES and short not in ("ep", "etp") else 1
        if devices > 0:
            self._set(WORLD, devices)

    def _titan(self, line: str) -> None:
        if (found := _TITAN.search(line)) is not None:
            for name, word in zip(
                ("micro_batch_size", "global_batch_size", "seq_length"), found.groups(), strict=True
            ):
                self._whole(f"config.{name}", word)

    def _hugging_face(self, line: str) -> None:
        if (found := _HF_DTYPE.search(line)) is not None:
            if found[1]:
                self._whole(WORLD, found[1])
            self._set(PRECISION, _TYPES.get(found[2], found[2]))

    def _low_precision(self, line: str) -> None:
        if "training active" in line:
            self._flag("fp8", "mxfp8" if "MXFP8" in line else "float8")

    def _accumulates(self, line: str) -> None:
        found = re.search(r"Gradient Accumulation steps = ([0-9]{1,9})", line)
        self._accumulation = int(found[1]) if found is not None else self._accumulation

    def _json(self, line: str) -> None:
        """A model's configuration by transformers, the first one: others may be of a reference model."""
        if line.endswith("{") and (found := _MODEL.search(line)) is not None:
            self._in_model, self._model_read = not self._model_read, True
            self._facts.setdefault("config.model", found[1])
        elif line.startswith("}"):
            self._in_model = False
        elif self._in_model and (found := _JSON.match(line)) is not None:
            key = _SAID.same.get(found[1], found[1])
            if key in _SAID.numbers and (value := whole_of(found[2])) is not None:
                self._facts.setdefault(f"config.{key}", value)
        elif (found := _TITAN_DTYPE.search(line) if "mixed_precision_param" in line else None) is not None:
            self._flag(_TYPES.get(found[1], found[1]), "true")
        elif line.endswith(",") and (found := _TRAINING_ARGUMENT.match(line)) is not None:
            if "length" in found[1]:
                self._whole("config.seq_length", found[2], alias=True)
            else:
                self._flag(found[1], found[2].lower())


_MESH_NAMES = MappingProxyType(
    {
        "pp": "pipeline_model_parallel_size",
        "dp_replicate": "data_parallel_replicas",
        "dp_shard": "data_parallel_shards",
        "dp": "data_parallel_size",
        "cp": "context_parallel_size",
        "tp": "tensor_model_parallel_size",
        "ep": "expert_model_parallel_size",
        "etp": "expert_tensor_parallel_size",
    }
)
_TAKERS: Mapping[str, Callable[[Said, str], None]] = MappingProxyType(
    {
        "parallel group ranks": Said._groups,
        "-parallel size: ": Said._sizes,
        "device mesh with": Said._mesh,
        "Trainer is initialized": Said._titan,
        "compute dtype": Said._hugging_face,
        "training active": Said._low_precision,
        "Accumulation steps": Said._accumulates,
    }
)


_ANY = re.compile("|".join(map(re.escape, (" ...", *_SAID.sentences, *_SAID.words, *_TAKERS))))
"""Most lines of a log say nothing of this, which one search tells."""


def _precision(flags: Mapping[str, str]) -> str:
    """The types that GEMMs run in: `bf16`, `bf16 + fp8 hybrid (mxfp8)`; empty where the log does not say."""
    on = {key for key, word in flags.items() if word.lower() not in _OFF}
    if not {"bf16", "fp16", "fp32"} & on and not {"bf16", "fp16"} <= flags.keys():
        return ""
    base = next((key for key in ("bf16", "fp16") if key in on), "fp32")
    low = next((key for key in ("fp4", "fp8") if key in on), None)
    if low is None:
        return base
    recipe = f" ({flags['fp8_recipe']})" if low == "fp8" and "fp8_recipe" in on else ""
    return f"{base} + {low} {flags[low]}{recipe}"
