"""What is known of the job: its settings, who said them, and its tokens per second."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfdoc import results as d
from perfdoc.analyzers.job import JobMeasurement
from perfdoc.analyzers.layout.degrees import SHOWN
from perfdoc.knobs.configuration import Configuration, Undecided, View
from perfdoc.knobs.knob import Value
from perfdoc.knobs.reading.entry import NotAConfigurationError
from perfdoc.results.headline import Framework
from perfdoc.results.quality import Contradiction
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import known_models

_FACTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "world_size": ("world_size",),
        "tp": ("tensor_model_parallel_size",),
        "pp": ("pipeline_model_parallel_size",),
        "vpp": ("virtual_pipeline_model_parallel_size",),
        "cp": ("context_parallel_size", "ulysses_sequence_parallel_size"),
        "ep": ("expert_model_parallel_size",),
        "sequence_parallel": ("sequence_parallel",),
        "micro_batch_sequences": ("micro_batch_size", "local_batch_size", "trainer_batch_size"),
        "global_batch_sequences": ("global_batch_size",),
        "sequence_length": ("seq_length",),
    }
)
"""Field of JobFacts → canonical ids that say it; the first one that is known holds."""
_DEGREES = ("tp", "pp", "cp", "ep", "vpp")
_NOT_SAMPLES = frozenset({"verl"})
"""Whose batches count prompts, of which each has several samples."""
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        **{
            name: name
            for name in (
                *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
                *("kv_channels", "swiglu", "mtp_num_layers", "moe_router_topk", "moe_ffn_hidden_size"),
                *("moe_shared_expert_intermediate_size", "moe_layer_freq", "multi_latent_attention"),
                *_LATENT,
                *("group_query_attention", "experimental_attention_variant", "vocab_size"),
            )
        },
        "num_moe_experts": "num_experts",
    }
)
"""Canonical id → Megatron-LM's argument."""
_VOCABULARIES: Mapping[str, int] = MappingProxyType(
    {
        **{"GPT2BPETokenizer": 50_257, "Llama2Tokenizer": 32_000, "Llama3Tokenizer": 128_256},
        **{"BertWordPieceLowerCase": 30_522, "BertWordPieceCase": 28_996},
    }
)
"""Tokenizers of Megatron-LM that have one vocabulary each."""


def stated_facts(of: Configuration) -> dict[str, Any]:
    """Fields of JobFacts and ModelShape that the settings state, or that follow from them and from the
    framework's own defaults; `model` is the name of a published one."""
    view = View(of)
    found: dict[str, Any] = {}
    whole = of.dialect == "megatron_lm" or (of.dialect == "torchtitan" and "model_flavor" in of.values)
    for fact, knobs in _FACTS.items():
        for knob in knobs:
            value = _known(view, knob, default=fact in _DEGREES and whole)
            if value is not None and (fact not in ("micro_batch_sequences",) or value):
                found[fact] = value
                break
    if of.dialect in _NOT_SAMPLES:
        found.pop("global_batch_sequences", None)
        found.pop("micro_batch_sequences", None)
    if of.dialect == "megatron_lm" and "num_layers" in of.values:
        unknown = {fact for fact, knobs in _FACTS.items() if set(knobs) & of.unknown}
        found |= {name: 1 for name in _DEGREES if name not in found and name not in unknown}
    if "global_batch_sequences" not in found and of.dialect not in _NOT_SAMPLES:
        found |= _batch(view, found, whole)
    found |= _formats(view)
    found |= _shape(of, view, found)
    return found


def _batch(view: View, found: Mapping[str, Any], whole: bool) -> dict[str, Any]:
    """The global batch where none is set: samples of a rank x data-parallel ranks x accumulated steps."""
    samples, ranks = found.get("micro_batch_sequences"), found.get("world_size")
    degrees = [found.get(name, None if whole else 1) for name in ("tp", "pp", "cp")]
    own = None if whole else _known(view, "gradient_accumulation_steps")  # of DeepSpeed's part
    steps = 1 if whole else own or _known(view, "trainer_gradient_accumulation", default=True)
    if "global_batch_size" in view.unknown or not (whole or view.dialect == "accelerate"):
        return {}
    if not all(isinstance(n, int) and n > 0 for n in (samples, ranks, steps, *degrees)):
        return {}
    return {"global_batch_sequences": samples * max(ranks // math.prod(degrees), 1) * steps}


def _known(view: View, knob: str, *, default: bool = False) -> Any:
    try:
        return view.or_default(knob) if default else view(knob)
    except (Undecided, ArithmeticError):
        return None


_FLOATS = ("bf16", "fp16", "deepspeed_bf16", "deepspeed_fp16")


def _formats(view: View) -> dict[str, Any]:
    """Format of the GEMMs, and what is recomputed."""
    found: dict[str, Any] = {}
    floats = [name for name in _FLOATS if _known(view, name) is True]
    mixed = _known(view, "accelerate_mixed_precision")
    if _known(view, "fp8") not in (None, False):
        found["dtype"] = "fp8"
    elif floats:
        found["dtype"] = floats[0].removeprefix("deepspeed_")
    elif mixed in ("bf16", "fp16", "fp8"):
        found["dtype"] = mixed
    elif _known(view, "fsdp_param_dtype") is not None and view.dialect == "torchtitan":
        found["dtype"] = _known(view, "fsdp_param_dtype")
    for knob, words in (
        ("recompute_granularity", {}),
        ("checkpoint_mode", {"memory_budget": "selective"}),
        ("trainer_gradient_checkpointing", {True: "full", False: "none"}),
        ("fsdp_activation_checkpointing", {True: "full", False: "none"}),
    ):
        value = _known(view, knob)
        if value is not None and "recompute" not in found:
            found["recompute"] = words.get(value, value)
    return found


def _shape(of: Configuration, view: View, found: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ModelShape, or the name of a published model."""
    values = {argument: _known(view, knob) for knob, argument in _ARGUMENTS.items() if knob in of.values}
    if not {"num_layers", "hidden_size", "num_attention_heads"} <= values.keys():
        name = _published(of)
        return {} if name is None else {"model": name}
    if of.dialect == "megatron_lm":
        values.setdefault("swiglu", False)
        values.setdefault("group_query_attention", False)
        if values.get("multi_latent_attention"):
            values |= {name: _known(view, name, default=True) for name in _LATENT}
        if values.get("ffn_hidden_size") is None and "ffn_hidden_size" not in of.unknown:
            wide = 4 * values["hidden_size"]
            values["ffn_hidden_size"] = int(wide * 2 / 3 / 64) * 64 if values["swiglu"] else wide
        values["padded_vocab_size"] = _vocabulary(of, view, values.get("vocab_size"), found.get("tp", 1))
    if set(_ARGUMENTS) & of.unknown:
        return {}
    from perfdoc.profiling.model_config.megatron import megatron_fields

    try:
        return megatron_fields({name: value for name, value in values.items() if value is not None})[1]
    except (ValueError, TypeError):
        return {}


def _vocabulary(of: Configuration, view: View, stated: int | None, tp: int) -> int | None:
    """Padded as Megatron-LM does, to a multiple of 128 (or what is asked) for each rank of TP."""
    padded = _known(view, "padded_vocab_size")
    if padded is not None:
        return int(padded)
    merges = "GPT2BPETokenizer" if "merge_file" in of.values.keys() | of.unknown else ""
    size = stated or _VOCABULARIES.get(str(of.values.get("tokenizer_type", merges)))
    if size is None:
        name = published_name(str(of.values.get("tokenizer_model", "")))
        size = None if name is None else known_models()[name].vocabulary
    multiple = _known(view, "vocabulary_multiple", default=True)
    if size is None or not isinstance(multiple, int):
        return None
    return -(-size // (multiple * tp)) * multiple * tp


_PUBLISHED: Mapping[str, str] = MappingProxyType(
    {
        **{"llama3.1-8b": "llama3-8b", "llama3.1-70b": "llama3-70b", "llama3.3-70b": "llama3-70b"},
        **{"llama3-405b": "llama3.1-405b", "deepseek-r1": "deepseek-v3", "deepseek-v3-671b": "deepseek-v3"},
    }
)
"""Published models of one shape."""


def published_name(text: str) -> str | None:
    """The published model that a path or a recipe names; None where it names none that is known.

    >>> published_name("meta-llama/Llama-3.1-8B-Instruct"), published_name("llama3_8b_pretrain_config")
    ('llama3-8b', 'llama3-8b')
    """
    names = {**{name: name for name in known_models()}, **_PUBLISHED}
    for part in reversed(re.split(r"[/ ]+", text.lower().replace("_", "-"))):
        plain = re.sub(r"^(meta-)?(llama|qwen|gpt)-?(\d)(\d)?(?=[-.])", _dotted, part)
        fitting = [
            name for name in names if re.fullmatch(rf"{re.escape(name)}(-(?!\d+(\.\d+)?[bm]\b).*)?", plain)
        ]
        if fitting:
            return names[max(fitting, key=len)]
    return None


def _dotted(match: re.Match[str]) -> str:
    return match[2] + match[3] + (f".{match[4]}" if match[4] else "")


def _published(of: Configuration) -> str | None:
    said = [str(of.values[name]) for name in ("model_path", "model_recipe") if of.values.get(name)]
    flavor = of.values.get("model_flavor")
    if flavor and said:  # of one family, whose other sizes go by the same name
        whole = f"{said[-1]}-{flavor}".lower().replace("_", "-")
        return _PUBLISHED.get(whole, whole if whole in known_models() else None)
    return next((name for text in said if (name := published_name(text)) is not None), None)


_KNOB_OF_FACT: Mapping[str, str] = MappingProxyType(
    {fact: knobs[0] for fact, knobs in _FACTS.items()}
    | {"etp": "expert_tensor_parallel_size", "dp": "data_parallel_size", "recompute": "recompute_granularity"}
)


def settings_of_file(path: Path) -> Configuration | None:
    """What a file sets that the catalogue knows; None where it is no configuration."""
    from perfdoc.knobs.settings import read_configuration

    try:
        return read_configuration(path)
    except (NotAConfigurationError, OSError):
        return None


_AT_ODDS = ("world_size", "global_batch_sequences")
"""What is left out first where a file's numbers contradict each other: a script is for several sizes."""


def stated_by(found: Configuration | None) -> Iterator[Mapping[str, Any]]:
    """Facts that a configuration states, then with ever fewer of those that may contradict the others."""
    stated = {} if found is None else stated_facts(found)
    yield dict(stated)
    for name in _AT_ODDS:
        if stated.pop(name, None) is not None:
            yield dict(stated)
    if stated:
        yield {}


def job_configuration(facts: JobFacts, given: Path | None) -> Configuration:
    """Settings by canonical id. given: the file of --config, which goes before run.json.

    Facts fill in what neither says. A file that the catalogue cannot read says nothing: whether it may be
    read at all was decided where its facts were taken.
    """
    found = Configuration()
    for path in (given, facts.run_directory):
        if path is not None and (read := settings_of_file(path)) is not None:
            found = read
            break
    known: dict[str, Value] = {
        knob: None if value == "none" else value
        for fact, knob in _KNOB_OF_FACT.items()
        if (value := getattr(facts, fact)) is not None and knob not in found.values
    }
    return replace(
        found,
        values={**known, **found.values},
        unknown=found.unknown - frozenset(known),
        filled=frozenset(known) - found.unknown,
    )


def with_shown_degrees(configuration: Configuration, facts: JobFacts) -> Configuration:
    """The same with the degrees that nobody set and the captures show."""
    known: dict[str, Value] = {
        knob: getattr(facts, fact)
        for fact, knob in _KNOB_OF_FACT.items()
        if facts.sources.get(fact) == SHOWN
        and knob not in configuration.values.keys() | configuration.unknown
    }
    filled = configuration.filled | frozenset(known)
    return replace(configuration, values={**known, **configuration.values}, filled=filled)


_SAME = (
    *("world_size", "tp", "cp", "pp", "dp", "vpp", "ep", "etp", "sequence_parallel", "micro_batches"),
    *("micro_batch_sequences", "global_batch_sequences", "sequence_length", "dtype", "recompute"),
)
_NO_STEPS = ("the windows are not made of whole steps", "Name the ranges that are steps with --step-range.")
_NO_GPUS = ("the job's number of GPUs is unknown", "Give it: --set world_size=64.")
_NO_BATCH = (
    "batch unknown: {} not given",
    "Give the global batch and the sequence length, such as --set gbs=128 seq=8192.",
)


def job_of(
    job: JobMeasurement,
    configuration: Configuration,
    contradicted: Sequence[Contradiction] = (),
    framework: Framework = "",
) -> d.Job:
    """Tokens per second and GPU = global batch x sequence length / (mean step time x GPUs): 128 sequences of
    8,192 in 2 s on 64 GPUs are 8,192."""
    facts = job.facts
    batch, length = facts.global_batch_sequences, facts.sequence_length
    step_ns, gpus = job.mfu.step_time_ns, job.mfu.gpus
    tokens = None if batch is None or length is None else batch * length
    reason, remedy = "", ""
    if tokens is None:
        missing = [key for key, value in (("gbs", batch), ("seq", length)) if value is None]
        reason, remedy = _NO_BATCH[0].format(", ".join(missing)), _NO_BATCH[1]
    elif not step_ns:
        reason, remedy = _NO_STEPS
    elif not gpus:
        reason, remedy = _NO_GPUS
    known = {name: getattr(facts, name) for name in _SAME}
    return d.Job(
        **known,
        model=None if facts.model is None else facts.model.name or None,
        dialect=configuration.dialect,
        sources={name: said for name, said in facts.sources.items() if name in (*_SAME, "model")},
        tokens_per_step=tokens,
        tokens_per_s_per_gpu=(
            tokens / (step_ns * 1e-9) / gpus if tokens is not None and step_ns and gpus else None
        ),
        tokens_reason=reason,
        tokens_remedy=remedy,
        contradictions=list(contradicted),
        degrees=list(job.degrees),
        framework=framework,
    )
