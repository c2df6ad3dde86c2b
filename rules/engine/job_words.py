"""What rules say of settings, in the words of the job's own framework.

Rules name settings by their canonical ids, which are Megatron's. In a job of another framework an id says
nothing: what it does stands there instead; where the framework is not known, with the id as an example.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from perfdoc.knobs.load import ELSEWHERE, catalogue
from perfdoc.results.headline import Framework
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.rule import Verdict

PLAIN: Mapping[str, str] = MappingProxyType(
    {
        "attention_backend": "the choice of attention kernels",
        "bucket_size": "the size of gradient buckets",
        "cp_comm_type": "the scheme of context parallelism",
        "cpu_offloading": "offloading of layers' activations",
        "cuda_device_max_connections": "CUDA_DEVICE_MAX_CONNECTIONS",
        "cuda_graph_impl": "CUDA graphs",
        "fine_grained_activation_offloading": "offloading of single modules' activations",
        "fp8_param_gather": "weights kept in FP8",
        "grad_reduce_in_fp32": "gradients reduced in FP32",
        "nccl_communicator_config_path": "the communicator's own configuration",
        "nccl_ub": "registered user buffers",
        "overlap_grad_reduce": "reduction of gradients during the backward pass",
        "overlap_p2p_comm": "overlap of messages between stages",
        "overlap_param_gather": "weights gathered ahead of their layers",
        "pipeline_model_parallel_layout": "a layout of layers over stages",
        "recompute_granularity": "activation recomputation",
        "recompute_modules": "recomputation of single modules",
        "recompute_num_layers": "the number of recomputed layers",
        "reduce_scatter_with_fp32_accumulation": "sums accumulated in FP32",
        "sequence_packing_size": "packs of a fixed length",
        "sequence_parallel": "sequence parallelism",
        "tp_comm_overlap": "overlap of TP communication with its GEMMs",
        "tp_comm_overlap_cfg": "its configuration by GEMM",
        "transformer_impl": "the implementation of layers",
        "ulysses_sequence_parallel_size": "the Ulysses degree",
        "use_sharp": "reduction in the switches (SHARP)",
        "use_tp_pp_dp_mapping": "PP inside DP",
    }
)
"""By setting that rules speak of, what it does, as a noun."""
_NOT_MEGATRONS = frozenset({"record_shapes", "record_memory_history", "profile_memory", "with_stack"})
"""PyTorch's names."""


def in_job_words(framework: Framework, verdict: Verdict) -> Verdict:
    """The same verdict; of a job that is not Megatron's, without its settings' names. What a rule lacks that
    does not fire keeps the name under which it can be given; values of evidence are the capture's own."""
    if framework == "megatron" or verdict.state != "fires":
        return verdict

    def said(text: str) -> str:
        return plain_words(text, example=not framework)

    return replace(
        verdict,
        reason=said(verdict.reason),
        remedy=said(verdict.remedy),
        otherwise=said(verdict.otherwise),
        action=said(verdict.action),
        verify=said(verdict.verify),
        false_alarm=said(verdict.false_alarm),
        evidence=[Evidence(label=said(e.label), value=e.value) for e in verdict.evidence],
    )


def plain_words(text: str, *, example: bool = False) -> str:
    """A text with what settings do for their names. example: with the name behind, as Megatron's. Brackets
    with nothing but a name go; names of files, and of functions with their file behind, stay.

    >>> plain_words("overlap_p2p_comm is off; the scheme (cp_comm_type) is p2p")
    'Overlap of messages between stages is off; the scheme is p2p'
    """
    if "_" not in text:
        return text
    if not example:
        text = _alone_in_brackets().sub("", text)

    def word(match: re.Match[str]) -> str:
        knob = match[0]
        plain = PLAIN.get(knob, knob.replace("_", " "))
        if match.start() == 0 or text[: match.start()].endswith((". ", "? ")):
            plain = plain[:1].upper() + plain[1:]
        inside = text[: match.start()].count("(") > text[: match.start()].count(")")
        if not example:
            return plain
        return f"Megatron's {knob}" if inside else f"{plain} (Megatron's {knob})"

    return _names().sub(word, text)


@cache
def _any_knob() -> str:
    megatrons = [name for name, knob in catalogue().items() if knob.topic not in ELSEWHERE]
    known = [k for k in megatrons if "_" in k and k not in _NOT_MEGATRONS]
    return "(?:" + "|".join(re.escape(k) for k in sorted(known, key=len, reverse=True)) + ")"


@cache
def _names() -> re.Pattern[str]:
    return re.compile(rf"(?<![\w./-]){_any_knob()}(?![\w(/=]|\.\w| \([^()\s]{{1,200}}\.\w+\))")


@cache
def _alone_in_brackets() -> re.Pattern[str]:
    """An aside that is a setting's name: ` (cp_comm_type)`."""
    return re.compile(rf" \({_any_knob()}\)")
