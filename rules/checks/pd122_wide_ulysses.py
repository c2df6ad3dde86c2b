"""PD122: heads exchanged between more ranks than there are heads of keys, or GPUs in a node."""

from __future__ import annotations

from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import applies, given, known, several
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.context_parallel import divisors, key_value_heads
from perfdoc.rules.facts.exposed import exposed_ns

META = Meta(
    code="PD122",
    title="Ulysses wider than key heads or the node",
    why="Ulysses exchanges heads four times a layer, and nothing overlaps it: past the heads of keys and "
    "values they are copied to be exchanged, past the node the exchange goes over the network.",
    sources=("seed 004",),
    topic="long_sequence",
    needs=(
        applies(
            "heads that ranks exchange (verl's FSDP engine)",
            lambda case: _degree(case) is not None,
            "ulysses_sequence_parallel_size is not set or not known: verl's FSDP engine alone has it",
        ),
        several(
            "several ranks that exchange heads", lambda case: _degree(case), one="heads are not exchanged"
        ),
        known(
            "key and value heads, and the GPUs of a node",
            key_value_heads,
            lambda case: _gpus_of_node(case),
            reason="key and value heads, or the GPUs of a node, are not known",
        ),
    ),
    advice=("cp_ulysses_verl", "cp_tldr"),
)

_KNOB = "ulysses_sequence_parallel_size"


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where the degree is above min(GPUs of a node / TP, key and value heads). One
    guide says in prose that it must be larger than the heads; its summary, min(…), is right."""
    degree, shared, node = given(_degree(case)), given(key_value_heads(case)), given(_gpus_of_node(case))
    tp = case.degree("tensor_model_parallel_size") or 1
    most = max(1, min(node // tp, shared))
    evidence = [
        Evidence(label="ranks that exchange heads", value=str(degree)),
        Evidence(label="key and value heads", value=str(shared)),
        Evidence(label="GPUs of a node / TP", value=str(node // tp)),
    ]
    share = case.share(exposed_ns("cp"))
    if share:
        evidence.append(Evidence(label="exposed CP communication, mean over ranks", value=per_cent(share)))
    if degree <= most:
        return Verdict(state="passes", evidence=evidence)
    # Each rank gets whole heads of keys; those of queries are a multiple of them.
    to = [d for d in divisors(degree) if d <= most and shared % d == 0][-1]
    return Verdict(
        state="fires",
        worst=worst_exposed(case, "cp"),
        level="information",
        reason=f"more than {most} ranks exchange heads",
        evidence=evidence,
        advice=[
            advise(
                knob=_KNOB,
                to=to,
                why="keeps the exchange inside a node and hands every rank heads of its own",
                costs=f"{degree // to} times the activations on each GPU",
            )
        ],
        verify="Run again: all-to-alls take a smaller share of the step.",
        false_alarm="A sequence that fits on no fewer GPUs: then a ring over nodes (context parallelism) is "
        "due.",
    )


def _degree(case: Case) -> int | None:
    known, degree = case.setting(_KNOB)
    return degree if known and isinstance(degree, int) else None


def _gpus_of_node(case: Case) -> int | None:
    each = case.number("nproc_per_node")
    return each or (None if case.gpu is None else case.gpu.nvlink_domain)
