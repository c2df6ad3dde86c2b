"""The rows of the table of benchmarks/peers.py: an answer, in brackets how far it is from the exact count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COLUMNS = (
    *("trace", "tool", "wall s", "CPU s", "peak MB", "busy ms", "exposed ms", "idle ms", "hidden %"),
    *("5 kernels ms", "streams' gaps ms"),
)
_POPULATIONS = {
    "kernels": "exact",
    "hta": "exact, HTA's",
    "hta_all": "exact, HTA's with the last step",
    "perfdoc": "exact, with multimem",
}
_NONE = "-"
Counts = Mapping[str, Any]
"""What benchmarks/peers_exact.py counted over one population."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One tool on one trace."""

    label: str
    wall_s: float
    cpu_s: float
    peak_mb: float
    error: str
    answers: Mapping[str, Any] | None
    own: str
    """The population that this tool says it counts; empty where it is all kernels."""


def head_lines() -> list[str]:
    return ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]


def exact_cells(label: str, counts: Counts) -> Sequence[str]:
    devices = counts["devices"].values()
    hidden = [_hidden_percent(d) for d in devices if d["comm_ns"]]
    return (
        *(_POPULATIONS[label], "", "", ""),
        *(_ms(sum(d[name] for d in devices)) for name in ("busy_ns", "exposed_ns", "idle_ns")),
        f"{sum(hidden) / len(hidden):.2f}" if hidden else _NONE,
        _ms(sum(list(counts["totals"].values())[:5])),
        _ms(sum(counts["stream_idle_ns"].values())),
    )


def tool_cells(tool: Answered, exact: Mapping[str, Counts]) -> Sequence[str]:
    cost = (tool.label, f"{tool.wall_s:.2f}", f"{tool.cpu_s:.2f}", f"{tool.peak_mb:,.0f}")
    if tool.answers is None:
        return (*cost, f"fails: {tool.error}", *[_NONE] * 5)
    answers = tool.answers
    against = [exact["kernels"], *([exact[tool.own]] if tool.own else [])]
    hidden = [100 * d["hidden_frac"] for d in answers["devices"].values() if d["hidden_frac"] is not None]
    streams = answers.get("stream_idle_ns")
    return (
        *cost,
        *(
            _cell(_sum(answers, name), [_sum_error(answers, name, counts) for counts in against])
            for name in ("busy_ns", "exposed_ns", "idle_ns")
        ),
        _cell(
            sum(hidden) / len(hidden) if hidden else None,
            [_worst_hidden(answers["devices"], counts["devices"]) for counts in against],
            of=1,
        ),
        _cell(sum(ns for _, ns in answers["top"]), [_top_error(answers["top"], c) for c in against]),
        _NONE
        # How gaps are counted is each tool's own, so there is nothing else to hold it against.
        if streams is None
        else _cell(sum(streams.values()), [_apart(streams, against[-1]["stream_idle_ns"])]),
    )


def _cell(answer: float | None, errors: Sequence[float], of: float = 1e6) -> str:
    if answer is None:
        return _NONE
    shown = [f"{error / of:,.2f}" if error else "0" for error in errors]
    return f"{answer / of:,.2f} ({'; own '.join(shown)})"


def _sum(answers: Mapping[str, Any], name: str) -> float:
    """Over all devices, unless the tool gives only their sum."""
    if name in answers:
        return float(answers[name])
    return float(sum(d[name] for d in answers["devices"].values()))


def _sum_error(answers: Mapping[str, Any], name: str, counts: Counts) -> float:
    exact = {key: device[name] for key, device in counts["devices"].items()}
    if name in answers:
        return abs(float(answers[name]) - sum(exact.values()))
    return _apart({key: device[name] for key, device in answers["devices"].items()}, exact)


def _apart(given: Mapping[str, float], exact: Mapping[str, float]) -> float:
    """Differences of all devices, none set off against another's."""
    return sum(abs(given.get(key, 0) - exact.get(key, 0)) for key in {*given, *exact})


def _hidden_percent(device: Mapping[str, int]) -> float:
    return 100 * device["hidden_ns"] / device["comm_ns"]


def _worst_hidden(given: Mapping[str, Mapping[str, Any]], exact: Mapping[str, Mapping[str, int]]) -> float:
    """Percentage points, of the device that is furthest off."""
    return max(
        (
            abs(100 * (given.get(key, {}).get("hidden_frac") or 0.0) - _hidden_percent(device))
            for key, device in exact.items()
            if device["comm_ns"]
        ),
        default=0.0,
    )


def _top_error(given: Sequence[tuple[str, float]], counts: Counts) -> float:
    """What each of the five is off, and all of one that is missing, by the kind of name that is given."""
    full, short = counts["totals"], counts["short_totals"]
    is_full = sum(name in full for name, _ in given) >= sum(name in short for name, _ in given)
    exact = full if is_full else short
    names = dict(given)
    missed = sum(ns for name, ns in list(exact.items())[:5] if name not in names)
    return float(missed + sum(abs(ns - exact.get(name, 0)) for name, ns in given))


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.2f}"
