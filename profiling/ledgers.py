"""What a step of a profiled window was made of, from diagnosis.json: the few fields that need no analysis."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Window(msgspec.Struct):
    kind: str
    steps: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0


class _Rank(msgspec.Struct):
    window: _Window
    ledger_ns: dict[str, _Count | dict[str, _Count]]


class Ledgers(msgspec.Struct):
    """Decode diagnosis.json to this."""

    ranks: list[_Rank]
    verdict: str = ""
    why: str = ""

    def of_a_step(self) -> dict[str, float]:
        """Nanoseconds by leaf (`compute`, `idle.host`), the mean over ranks whose window is of steps; empty
        where there is none."""
        found: dict[str, float] = {}
        ranks = [rank for rank in self.ranks if rank.window.kind == "steps" and rank.window.steps]
        for rank in ranks:
            for name, part in rank.ledger_ns.items():
                for inner, ns in part.items() if isinstance(part, dict) else [("", part)]:
                    leaf = f"{name}.{inner}" if inner else name
                    found[leaf] = found.get(leaf, 0.0) + ns / rank.window.steps / len(ranks)
        return found
