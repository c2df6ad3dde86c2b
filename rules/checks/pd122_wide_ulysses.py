"""Ulysses runs four all-to-alls of heads per layer, without overlap: above the number of key/value heads
these are replicated first, above the node's GPUs the all-to-all crosses the network."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import applies, given, known, several
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.context_parallel import key_value_heads
from perfdoc.rules.facts.degrees import divisors
from perfdoc.rules.facts.exposed import exposed_ns

META = Meta(
    title="Ulysses degree above key/value heads or the node",
    action="Lower the Ulysses degree",
    sources=("megatron-core notes",),
    topic="long_sequence",
    needs=(
        applies(
            "Ulysses sequence parallelism (verl's FSDP engine)",
            lambda case: _degree(case) is not None,
            "ulysses_sequence_parallel_size is not set or not known: only verl's FSDP engine has it",
        ),
        several("a Ulysses degree above 1", lambda case: _degree(case), one="the Ulysses degree is 1"),
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
    """Fires, as information, if the degree is above min(GPUs of a node / TP, key and value heads). One
    guide's prose says that it must be larger than the heads; its summary, min(…), is right."""
    degree, shared, node = given(_degree(case)), given(key_value_heads(case)), given(_gpus_of_node(case))
    tp = case.degree("tensor_model_parallel_size") or 1
    most = max(1, min(node // tp, shared))
    evidence = [
        ("Ulysses degree", str(degree)),
        ("key and value heads", str(shared)),
        ("GPUs of a node / TP", str(node // tp)),
    ]
    share = case.share(exposed_ns("cp"))
    if share:
        evidence.append(("exposed CP communication, mean over ranks", per_cent(share)))
    if degree <= most:
        return passes(evidence)
    # Each rank gets whole key heads; query heads are a multiple of them.
    to = [d for d in divisors(degree) if d <= most and shared % d == 0][-1]
    return informs(
        worst=worst_exposed(case, "cp"),
        reason=f"Ulysses degree above {most}",
        evidence=evidence,
        advice=[
            advise(
                knob=_KNOB,
                to=to,
                why="keeps the all-to-all inside a node and gives every rank its own heads",
                costs=f"{degree // to} times the activations per GPU",
            )
        ],
        verify="Run again: all-to-alls take a smaller share of the step.",
        false_alarm="A sequence that does not fit on fewer GPUs: then use a ring across nodes (context "
        "parallelism).",
    )


def _degree(case: Case) -> int | None:
    known, degree = case.setting(_KNOB)
    return degree if known and isinstance(degree, int) else None


def _gpus_of_node(case: Case) -> int | None:
    each = case.number("nproc_per_node")
    return each or (None if case.gpu is None else case.gpu.nvlink_domain)
