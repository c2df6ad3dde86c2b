"""What `perfdoc explain` says of a rule, in words that need neither the source nor its pages."""

from __future__ import annotations

import textwrap

from perfdoc.rules.advice.entries import entries, title_of
from perfdoc.rules.engine.rule import Meta

_NEEDS = {
    "trace": "a trace",
    "steps": "ranges that name steps",
    "ranks": "captures of several ranks",
    "settings": "the job's settings (perfdoc run, --config FILE)",
    "snapshot": "a memory snapshot",
    "hardware": "a GPU whose name is known",
    "model": "the model's shape (--set model=…)",
}


def rule_text(meta: Meta, width: int = 100) -> str:
    """Title, reason, needs, the advice that it decides, and sources; wrapped, ends with a new line."""
    parts = [f"{meta.code}  {meta.title} ({meta.status})", "", textwrap.fill(meta.why, width)]
    if meta.needs:
        needs = f"Needs: {', '.join(_NEEDS.get(need, need) for need in meta.needs)}"
        parts += ["", textwrap.fill(needs, width, subsequent_indent="  ")]
    if says := [entries()[name].says for name in meta.advice if name in entries()]:
        parts += ["", "What the guides advise"]
        parts += [textwrap.fill(f"- {one}", width, subsequent_indent="  ") for one in says]
    if meta.sources:
        parts += ["", "Sources", *(f"- {title_of(source)}" for source in meta.sources)]
    return "\n".join(parts) + "\n"
