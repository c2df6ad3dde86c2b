"""A configuration under canonical ids, and how constraints look at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType

from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.pipeline_layout import LAYOUT, stages_of
from perfdoc.records import dataclass


class Undecided(Exception):
    """A constraint asked for a setting that nobody knows."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Settings that somebody made, and what holds for the others."""

    values: Mapping[str, Value] = field(default_factory=dict)
    """Canonical id → what was set."""
    dialect: Dialect | None = None
    """Whose defaults hold; None: nobody knows which."""
    version: str = ""
    """Of the framework; empty where nobody knows it."""
    complete: bool = False
    """Whether a setting that is not there has its default. A recipe with overrides is not complete: what it
    does not name, the recipe may have set."""
    unknown: frozenset[str] = frozenset()
    """Set, but to something that cannot be told, such as a variable."""
    filled: frozenset[str] = frozenset()
    """Not written by anybody: what captures or the command line say instead, and changes that are tried."""
    paths: frozenset[str] = frozenset()
    """The catalogue's names of what a file sets, whatever role it sets it for: the section says which engine
    reads it."""

    def __post_init__(self) -> None:
        for name in (*self.values, *self.unknown):
            if name not in catalogue():
                raise ValueError(f"there is no knob {name}")

    def with_changes(self, changes: Mapping[str, Value]) -> Configuration:
        """The same with some settings made anew. Raises ValueError for an id that is not in the catalogue."""
        return replace(
            self,
            values=MappingProxyType({**self.values, **changes}),
            unknown=self.unknown - frozenset(changes),
            filled=self.filled.union(c for c in changes if c not in self.values and c not in self.unknown),
        )

    @property
    def written(self) -> frozenset[str]:
        """What a file sets, whatever it says."""
        return (frozenset(self.values) | self.unknown) - self.filled

    def setting(self, name: str) -> tuple[bool, Value]:
        """(whether it is known, its value)."""
        try:
            return True, View(self)(name)
        except Undecided:
            return False, None


class View:
    """A configuration as a constraint reads it: `view("bucket_size")`. It notes what was read.

    A setting is what was set, else its default where the configuration is complete (or `assume_defaults`),
    else unknown, which ends the constraint undecided.
    """

    def __init__(self, configuration: Configuration, *, assume_defaults: bool = False) -> None:
        self._of = configuration
        self._assume = assume_defaults or configuration.complete
        self._assume_unset = assume_defaults
        self.read: set[str] = set()
        self.assumed: set[str] = set()
        """Read, and not set: the default was taken."""

    def __call__(self, name: str) -> Value:
        """The value of a knob or fact. Raises Undecided."""
        self.read.add(name)
        set_to = self._of.values.get(name)
        if set_to is not None or (name in self._of.values and name not in DERIVED_FROM):
            return set_to
        derived = _derived(name, self._of)
        if derived is not None:
            value, sources = derived
            self.read |= sources
            return value
        if name in self._of.values:
            return set_to
        knob = catalogue()[name]
        if name in self._of.unknown or not self._assume or self._of.dialect is None:
            raise Undecided(name)
        if "env" in {s.dialect for s in knob.spellings}:  # others than this file may set it
            if not self._assume_unset:
                raise Undecided(name)
            self.assumed.add(name)
            return None
        has_default, default = knob.default(self._of.dialect, self._of.version)
        if not has_default:
            raise Undecided(name)
        self.assumed.add(name)
        return default

    @property
    def dialect(self) -> Dialect | None:
        """Whose settings these are."""
        return self._of.dialect

    @property
    def unknown(self) -> frozenset[str]:
        """What is set to something that cannot be told."""
        return self._of.unknown

    def is_given(self, name: str) -> bool:
        """Whether a file, the captures or the command line say what it is, or it is tried; whatever it is."""
        if name not in self._of.values and name not in self._of.unknown:
            return False
        self.read.add(name)
        return True

    def on(self, name: str) -> bool:
        """A switch that is on."""
        return self(name) is True

    def named_on(self, name: str) -> bool:
        """A switch that is on; it is off where nobody names it, as in every framework."""
        try:
            return self.on(name)
        except Undecided:
            if name in self._of.unknown:
                raise
            self.assumed.add(name)
            return False

    def or_default(self, name: str) -> Value:
        """The value, else the framework's own default even where a recipe may have set it: for settings that
        a script names when it wants something else. Raises Undecided where there is no default either."""
        try:
            return self(name)
        except Undecided:
            has_default, default = catalogue()[name].default(self._of.dialect, self._of.version)
            if name in self._of.unknown or not has_default:
                raise
            self.assumed.add(name)
            return default

    def number(self, name: str) -> int:
        """A whole number. Raises Undecided where it is none."""
        value = self(name)
        if isinstance(value, float) and value.is_integer():  # 5e8 elements
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Undecided(name)
        return value

    def degree(self, name: str) -> int:
        """A parallel degree, of which null stands for 1."""
        return 1 if self(name) is None else self.number(name)

    def items(self, name: str) -> tuple[object, ...]:
        """A list, empty where it is null; a single value stands for a list of it."""
        value = self(name)
        return () if value is None else value if isinstance(value, tuple) else (value,)

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""
        return self.degree("tensor_model_parallel_size")

    @property
    def pp(self) -> int:
        """Pipeline-parallel degree."""
        return self.degree("pipeline_model_parallel_size")

    @property
    def vpp(self) -> int:
        """Chunks of layers per pipeline rank."""
        return self.degree("virtual_pipeline_model_parallel_size")

    @property
    def cp(self) -> int:
        """Context-parallel degree. verl's scripts name it where it is not 1."""
        if self.dialect == "verl":
            return int(self.or_default("context_parallel_size") or 1)  # type: ignore[arg-type]
        return self.degree("context_parallel_size")

    @property
    def ep(self) -> int:
        """Expert-parallel degree."""
        return self.degree("expert_model_parallel_size")

    @property
    def etp(self) -> int:
        """Tensor-parallel degree of experts; null follows the dense one."""
        value = self("expert_tensor_parallel_size")
        return self.tp if value is None else self.number("expert_tensor_parallel_size")

    @property
    def dp(self) -> int:
        """Data-parallel degree, from the number of ranks where it is not given."""
        if self._of.values.get("data_parallel_size") is not None:
            return self.degree("data_parallel_size")
        world, model = self.number("world_size"), self.tp * self.pp * self.cp
        if world < 1 or model < 1 or world % model:  # `nproc_per_node: 0` leaves no rank at all
            raise Undecided("data_parallel_size")
        return world // model


_FSDP = "fsdp_strategy_nemo"
_FSDP_SWITCHES = MappingProxyType({"use_megatron_fsdp": "megatron", "use_torch_fsdp2": "pytorch"})
_EACH_STAGE = "num_layers_per_virtual_pipeline_stage"
_COUNTED_AS_LAYERS = frozenset(
    {"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"}
)
_VPP_SOURCES = (
    frozenset({"num_layers", "pipeline_model_parallel_size", _EACH_STAGE, LAYOUT}) | _COUNTED_AS_LAYERS
)
DERIVED_FROM: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "world_size": frozenset({"nnodes", "nproc_per_node"}),
        "seq_length": frozenset({"dataset_seq_length"}),
        "virtual_pipeline_model_parallel_size": _VPP_SOURCES,
        "use_megatron_fsdp": frozenset({_FSDP}),
        "use_torch_fsdp2": frozenset({_FSDP}),
        "cpu_offloading": frozenset({"cpu_offloading_num_layers"}),
        "grad_reduce_in_fp32": frozenset({"bf16"}),
        "recompute_granularity": frozenset({"moe_layer_recompute"}),
    }
)
"""Settings that may follow from others, and from which."""


def _derived(name: str, of: Configuration) -> tuple[Value, set[str] | frozenset[str]] | None:
    """What follows from other settings by arithmetic, and from which; None where it does not.

    Raises Undecided where it would follow from a setting that is made and cannot be told: neither a source's
    default nor the default of `name` holds then.
    """
    values, unknown = of.values, of.unknown
    if name in _FSDP_SWITCHES:
        chosen = values.get(_FSDP)
        return None if chosen is None else (chosen == _FSDP_SWITCHES[name], {_FSDP})
    if name == "seq_length":
        tokens = values.get("dataset_seq_length")
        return (tokens, {"dataset_seq_length"}) if isinstance(tokens, int) else None
    if name == "world_size":
        _known({"nnodes", "nproc_per_node"}, unknown)
        ranks = _times(values.get("nnodes", 1), values.get("nproc_per_node"))
        return None if ranks is None else (ranks, {"nnodes", "nproc_per_node"} & values.keys())
    if name == "virtual_pipeline_model_parallel_size":
        layout, pp = values.get(LAYOUT), values.get("pipeline_model_parallel_size")
        if isinstance(layout, str | tuple) and isinstance(pp, int) and not isinstance(pp, bool) and pp > 0:
            found = stages_of(layout)
            if found is not None and len(found.stages) % pp == 0:
                return len(found.stages) // pp, {LAYOUT, "pipeline_model_parallel_size"}
        if _EACH_STAGE in unknown or values.get(_EACH_STAGE) is not None:
            _known(_VPP_SOURCES, unknown)
            layers = values.get("num_layers")
            each = _times(values.get("pipeline_model_parallel_size"), values.get(_EACH_STAGE))
            if not each or not isinstance(layers, int):
                raise Undecided(_EACH_STAGE)
            layers += sum(values.get(counted) is True for counted in _COUNTED_AS_LAYERS)
            if layers % each:
                raise Undecided(_EACH_STAGE)  # the framework refuses it
            return layers // each, _VPP_SOURCES & values.keys()
    return _derived_switch(name, of)


def _derived_switch(name: str, of: Configuration) -> tuple[Value, set[str]] | None:
    """Switches that Megatron-LM and megatron-core set themselves."""
    values = of.values
    if name == "recompute_granularity" and values.get("moe_layer_recompute") is True:
        return "selective", {"moe_layer_recompute"}
    if of.dialect != "megatron_lm" or not of.complete:
        return None
    layers = values.get("cpu_offloading_num_layers")
    if name == "cpu_offloading" and isinstance(layers, int) and layers > 0:
        return True, {"cpu_offloading_num_layers"}
    if name == "grad_reduce_in_fp32" and values.get("bf16") is True and "main_grads_dtype" not in of.written:
        return True, {"bf16"}
    return None


def _known(sources: set[str] | frozenset[str], unknown: frozenset[str]) -> None:
    """Raise Undecided for the first source that was set to what cannot be told."""
    for source in sorted(sources & unknown):
        raise Undecided(source)


def _times(a: Value, b: Value) -> int | None:
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, int) or not isinstance(b, int):
        return None
    return a * b
