"""`perfdoc rules` and `perfdoc explain`."""

from __future__ import annotations

import difflib
from dataclasses import asdict

import msgspec

from perfdoc.rules.registry import all_rules


def list_rules(*, as_json: bool) -> str:
    """Every rule, a line each, or as a JSON array."""
    metas = [r.meta for r in all_rules()]
    if as_json:
        return msgspec.json.format(msgspec.json.encode([asdict(m) for m in metas]), indent=2).decode() + "\n"
    return "".join(f"{m.code}  {m.title}\n" for m in metas)


def explain_rule(code: str, *, as_json: bool) -> str:
    """One rule. Raises ValueError, with the nearest code, where there is none of that name."""
    rules = {r.meta.code: r.meta for r in all_rules()}
    meta = rules.get(code.upper())
    if meta is None:
        near = difflib.get_close_matches(code.upper(), rules, n=1)
        raise ValueError(
            f"there is no rule {code}" + (f"; did you mean {near[0]}?" if near else ". See: perfdoc rules")
        )
    if as_json:
        return msgspec.json.format(msgspec.json.encode(asdict(meta)), indent=2).decode() + "\n"
    return f"{meta.code}  {meta.title} ({meta.status})\n\n{meta.why}\n\nSources: {', '.join(meta.sources)}\n"
