"""Settings in the words of the job's own framework, by the table catalogue/words.yaml; and back."""

from collections.abc import Iterator
from dataclasses import replace

from perfdoc.knobs.check import check
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import DIALECT_TITLES, MEGATRONS, PYTORCHS, Dialect, Value
from perfdoc.knobs.values import as_text
from perfdoc.knobs.words import OwnSetting, holds, words
from perfdoc.knobs.writing import as_written
from perfdoc.results.headline import Framework
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.own_values import GLOBAL_BATCH_CHANGES, MICRO, WORKED_OUT, Beside, Own, verls_batch
from perfdoc.rules.facts.framework import (
    accelerates_way,
    has_own_file,
    is_megatrons_path,
    is_verls_fsdp,
    overlaps_comm,
    titans_micro_batch,
    zero_stage,
)

NOT_KNOWN = "upper bound: nothing of it is left if this is set already, which is not known"
_WAYS = {"DEEPSPEED": "zero", "MULTI_GPU": "ddp", "FSDP": "fsdp"}
_DIALECTS: dict[str, Dialect] = {"zero": "deepspeed", "fsdp": "accelerate", "ddp": "accelerate"}
_NAMES = {"pytorch": "PyTorch", "sharded": "FSDP", "deepspeed": "DeepSpeed", "vllm": "vLLM", "jax": "JAX"}
_WHOLE_LAYERS = "recomputes whole layers in the backward pass, all of them"
_ONE_FORWARD_MORE = "one forward pass more: about a third more compute"
_RECOMPUTE = "recompute_granularity"


def _rows(configuration: Configuration) -> list[OwnSetting]:
    """What the table says of a job."""
    dialect, way = configuration.dialect, accelerates_way(configuration)
    jobs = {dialect or "", _WAYS.get(way, "")} | ({"zero"} if dialect == "deepspeed" else set())
    if dialect == "verl" and not is_verls_fsdp(configuration):
        return [row for row in words().own if row.job == "verl" and row.knob == MICRO]
    return [row for row in words().own if row.job in jobs]


def _with_zero(configuration: Configuration) -> Configuration:
    """With what follows from ZeRO's stage where nobody sets it."""
    derived = {"zero_stage": zero_stage(configuration), "zero_overlap_comm": overlaps_comm(configuration)}
    known = {k: v for k, v in derived.items() if v is not None and k not in configuration.values}
    return configuration.with_changes(known) if known else configuration


def under_megatrons_names(framework: Framework, configuration: Configuration) -> Configuration:
    """The settings of a job of torchtitan, DeepSpeed, Accelerate or verl's FSDP, and what follows from them
    under the names of Megatron's, by which rules ask. What is set under Megatron's name already stays."""
    if framework != "pytorch":
        return configuration
    taken = {*configuration.values, *configuration.unknown}
    found = {knob: value for knob, value in _read(configuration) if knob not in taken}
    return configuration.with_changes(found) if found else configuration


def _read(configuration: Configuration) -> Iterator[tuple[str, Value]]:
    filled = _with_zero(configuration)
    for row in _rows(configuration):
        if not holds(row.read_if, filled):
            continue
        value = filled.values.get(row.own)
        if row.is_ is not None:
            yield row.knob, row.is_
        elif row.read == "whole":
            if isinstance(value, int | float) and not isinstance(value, bool) and value >= 1:
                yield row.knob, int(value)
        elif not isinstance(row.read, str) and value in row.read:
            yield row.knob, row.read[value]
    size = configuration.values.get(titans_micro_batch(configuration) or "")
    if configuration.dialect == "torchtitan" and isinstance(size, int) and not isinstance(size, bool):
        yield MICRO, size


def find_own(case: Case, piece: Advice, value: Value) -> Own | str | None:
    """The job's own setting that does what a piece of advice does, or why it has none here; None where its
    framework has nothing of the kind."""
    dialect = case.configuration.dialect
    rows = [row for row in _rows(case.configuration) if row.knob == piece.knob]
    for row in rows:
        if (own := _own(case, row, value)) is not None:
            return own
    if rows or dialect is None or dialect not in piece.dialects or "env" in piece.dialects:
        return None
    if is_megatrons_path(as_written(piece.knob, value, dialect)):
        return None
    return Own(dialect=dialect, knob=piece.knob, value=value)


def _own(case: Case, row: OwnSetting, value: Value) -> Own | str | None:
    configuration = case.configuration
    if row.by:
        return WORKED_OUT[row.by](case, value)
    if row.refuse:
        return row.refuse
    if not row.own:
        return None
    if row.in_file and not has_own_file(configuration):
        return "it is a setting of a deepspeed_config_file, which replaces the others of deepspeed_config"
    if row.sharded and zero_stage(configuration) == 0:
        return "DeepSpeed reads it with a ZeRO stage above 0 only"
    if row.fsdp_1 and row.fsdp_1 in configuration.unknown:
        return "whether it is FSDP or FSDP2, which does not read it, is not known"
    taken, to = row.own_value(value)
    if not taken or not holds(row.condition, _with_zero(configuration)):
        return None
    whole = row.whole_layers and to not in (False, "none")
    return Own(
        dialect=_DIALECTS.get(row.job) or configuration.dialect or "accelerate",
        knob=row.own,
        value=to,
        beside=tuple(
            Beside(knob=knob, value=True, why=why)
            for knob, why in row.beside.items()
            if not case.is_set_to(knob, True)
        ),
        why=_WHOLE_LAYERS if whole else row.why,
        costs=_joined(_ONE_FORWARD_MORE, row.costs) if whole else "" if row.whole_layers else row.costs,
    )


def in_own_words(case: Case, piece: Advice, value: Value) -> list[Advice]:
    """The piece as it is set in the job, and what is set beside it; refused where its framework has nothing
    of the kind, with Megatron's setting as an example; nothing for what is so already.

    Environment variables are the same everywhere, and so is all of it in a job of Megatron.
    """
    framework, dialect = case.framework, case.configuration.dialect
    if framework not in words().programs:
        return _of_megatron(case, piece, value)
    wrapped = framework == "pytorch" and dialect in (*PYTORCHS, "verl")
    own = find_own(case, piece, value) if wrapped else None
    if isinstance(own, Own):
        return _written(case, piece, own)
    program = _program(case, piece.knob)
    text = words().in_program(program, piece.knob, value) if own is None else None
    if text is not None and (not wrapped or _are_pytorchs(case, piece.knob, value)):
        if piece.knob == _RECOMPUTE:
            if case.is_set_to(piece.knob, "full"):
                return []  # less of it has no words here, and all of it is what the job does
            piece = _of_another_thing(piece, _WHOLE_LAYERS, _ONE_FORWARD_MORE)
        more = GLOBAL_BATCH_CHANGES if piece.knob == MICRO else ""
        key = framework if program == "sharded" else program
        return [replace(piece, dialects={key: text}, costs=_joined(piece.costs, more))]
    if "env" in piece.dialects:
        return [replace(piece, dialects={"env": piece.dialects["env"]})]
    megatron = piece.dialects.get("megatron_lm", "")
    example = f"; in Megatron-LM: {megatron}" if megatron else ""
    name = DIALECT_TITLES[dialect] if wrapped and dialect is not None else _NAMES[program]
    name = "FSDP in verl" if is_verls_fsdp(case.configuration) and wrapped else name
    return [replace(piece, dialects={}, forbidden=own or f"{name} has no such setting{example}")]


def _program(case: Case, knob: str) -> str:
    """Under whose words the table has a setting: what shards in PyTorch has its own of data parallelism."""
    if case.framework != "pytorch" or knob not in words().sharding:
        return case.framework
    if "deepspeed" in case.program.marks:
        return "deepspeed"
    return "sharded" if case.gathers_weights else "pytorch"


def _are_pytorchs(case: Case, knob: str, value: Value) -> bool:
    """Whether a framework around PyTorch leaves PyTorch's own words their place: of data parallelism only
    Accelerate does, for what DDP has."""
    of_ddp = knob in ("bucket_size", "use_distributed_optimizer") or (
        knob == "grad_reduce_in_fp32" and not value
    )
    return knob not in words().sharding or (of_ddp and accelerates_way(case.configuration) == "MULTI_GPU")


def _of_megatron(case: Case, piece: Advice, value: Value) -> list[Advice]:
    """verl cuts by tokens where it is told to, whatever its engine, which may be another than Megatron. What
    the job's own framework has no name for cannot be set; around megatron-core any program may have one."""
    dialect = case.configuration.dialect
    named = {dialect, "env"} & piece.dialects.keys() or dialect == "megatron_core"
    if dialect in MEGATRONS and not named:
        return [replace(piece, forbidden=f"{DIALECT_TITLES[dialect]} has no such setting")]
    if dialect != "verl":
        return [piece]
    own = verls_batch(case, value) if piece.knob == MICRO else None
    if isinstance(own, str):
        return [replace(piece, dialects={}, forbidden=own)]
    pieces = [piece] if own is None or own.knob == MICRO else _written(case, piece, own)
    if case.framework:
        return pieces
    costs = "read with verl's strategy megatron only"
    return [
        replace(p, costs=_joined(p.costs, costs)) if is_megatrons_path(p.dialects.get("verl", "")) else p
        for p in pieces
    ]


def _written(case: Case, piece: Advice, own: Own) -> list[Advice]:
    """The piece with the job's own setting in place of Megatron's, checked against the others, and what is
    set beside it; nothing where it is so already."""
    known, now = _with_zero(case.configuration).setting(own.knob)
    if known and now == own.value:
        return []
    beside, against = _permitted(replace(case.configuration, dialect=own.dialect), own)
    if own.why:
        piece = _of_another_thing(piece, own.why, own.costs)
    else:
        piece = replace(piece, costs=_joined(piece.costs, own.costs))
    if own.stands_alone:
        piece = replace(piece, knob=own.knob, to_value=as_text(own.value))
    # The job's own setting may count something else than the one that the piece names.
    alike = as_text(own.value) == piece.to_value
    told, before = (known, now) if alike else case.setting(piece.knob)
    certain = known and piece.if_unset == [piece.knob]
    main = replace(
        piece,
        from_value=as_text(before) if told else None,
        dialects={own.dialect: as_written(own.knob, own.value, own.dialect)},
        forbidden=against,
        together=[*piece.together, *(b.knob for b in beside)],
        if_unset=[] if certain else piece.if_unset,
        gain=_without_doubt(piece) if certain else piece.gain,
    )
    return [main] if against else [main, *(_beside(case, main, own.dialect, b) for b in beside)]


def _permitted(settings: Configuration, own: Own) -> tuple[tuple[Beside, ...], str]:
    """(what is set beside it, why the other settings forbid it): what mends a rule that it breaks comes with
    it."""
    changes = {own.knob: own.value, **{b.knob: b.value for b in own.beside}}
    against = check(settings, changes)
    if not against:
        return own.beside, ""
    rule = against[0].constraint
    fix: tuple[Beside, ...] = ()
    if rule is not None:
        fix = tuple(Beside(knob=k, value=v, why=rule.rule) for k, v in rule.fix if k not in changes)
    if fix and not check(settings, {**changes, **{b.knob: b.value for b in fix}}):
        return (*own.beside, *fix), ""
    return own.beside, against[0].words


def _beside(case: Case, main: Advice, dialect: Dialect, other: Beside) -> Advice:
    known, now = case.setting(other.knob)
    return replace(
        main,
        knob=other.knob,
        from_value=as_text(now) if known else None,
        to_value=as_text(other.value),
        why=other.why,
        costs="",
        dialects={dialect: as_written(other.knob, other.value, dialect)},
        gain=None,
        together=[],
    )


def _of_another_thing(piece: Advice, why: str, costs: str) -> Advice:
    return replace(piece, why=why, costs=costs, gain=None, together=[])


def _without_doubt(piece: Advice) -> Gain | None:
    gain = piece.gain
    if gain is None:
        return None
    return replace(gain, assumptions=[a for a in gain.assumptions if a != NOT_KNOWN])


def _joined(*costs: str) -> str:
    return "; ".join(text for text in costs if text)
