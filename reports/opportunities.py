"""What there is to do, row by row: action, predicted gain, confidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.reports.advice import excluding
from perfdoc.reports.outlook import replayed_ns
from perfdoc.reports.ranking import INEXACT, Ranked, gain_figures, ranking, trifles_in
from perfdoc.reports.savings import holds, shared_with
from perfdoc.reports.sections.section import stopped
from perfdoc.reports.settings import DIALECT_TITLES, Spelling, snippets, spellings
from perfdoc.results import Combined, Diagnosis, Gain, Prediction, RuleResult
from perfdoc.results.figures import UNKNOWN, share
from perfdoc.results.names import opening, prose, shorten
from perfdoc.results.ranking import AS_SLOW

_METHODS = {"replay": "by replay", "model": "by the job model", "ceiling": "upper bound"}
_SURE_FRAC, _LIKELY_FRAC = 0.25, 0.6
"""Half of the band by its middle."""
_TRIFLES = 8
_SLOWED = "PD906"
"""To capture again with less."""
_CODE = pattern_of(r"[A-Z]{1,8}[0-9]{1,6}\Z")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One row of the ranking, as the page words it."""

    ranked: Ranked
    anchor: str
    """Id on the page: the code where it is fit for that."""
    action: str
    """What to do, in the imperative, with its full stop."""
    title: str
    """What was found, and what the gain takes."""
    settings: list[Spelling]
    """All that is set for it in every spelling, the job's own first."""
    holds: str
    """What the saving consists of beside its part of the bar; else why there is no figure."""
    choice: int | None
    """Its change among those of which every set was simulated."""

    @property
    def code(self) -> str:
        """Of its rules; empty where no rule proposes the change."""
        return ", ".join(rule.code for rule in self.ranked.rules)

    @property
    def method(self) -> str:
        """Where the figure comes from."""
        gain = self.ranked.row.gain
        return _METHODS.get(gain.method, "") if gain is not None else ""

    @property
    def confidence(self) -> str:
        """Open conditions leave a prediction little worth."""
        return "low" if self.ranked.row.conditions else confidence_in(self.ranked.row.gain)


@dataclass(frozen=True, kw_only=True)
class SetOfChanges:
    """One set that was simulated together."""

    members: str
    """Numbers of the changes, with commas."""
    names: list[str]
    gain: str
    band: str
    share: str


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Changes of which every set was simulated."""

    changes: list[tuple[str, str]]
    """(name, what it gains alone)."""
    sets: list[SetOfChanges]
    reason: str
    """Why there are not more; empty otherwise."""


def opportunities(diagnosis: Diagnosis) -> list[Shown]:
    """Things to do, in their order, without trifles and information that has no figure; that first which the
    verdict says comes before all."""
    rows = [row for row in ranking(diagnosis) if row.leads]
    if rows and any(words.startswith(AS_SLOW) for words in rows[0].row.conditions):
        rows.sort(key=lambda row: _SLOWED not in row.row.codes)
    taken = _members(diagnosis.combined)
    codes = [row.rules[0].code if row.rules else "" for row in rows]
    return [
        Shown(
            ranked=row,
            anchor=code if _CODE.match(code) and codes.count(code) == 1 else f"opportunity-{i + 1}",
            action=stopped(opening(row.title)),
            title="; ".join(_notes(row, rows[0])),
            settings=spellings(row.row.settings, diagnosis),
            holds=holds(row, diagnosis) or row.no_figure,
            choice=taken.index(row.row.key) if row.row.key in taken else None,
        )
        for i, (row, code) in enumerate(zip(rows, codes, strict=True))
    ]


def _notes(ranked: Ranked, first: Ranked) -> Iterator[str]:
    rule = ranked.rule
    if rule is None:
        yield "No rule proposes it; simulated on this capture"
    elif ranked.row.kind == "unmeasured" and rule.reason:
        yield f"{rule.title}: {prose(rule.reason)}"  # no figure says what it costs
    elif rule.title != ranked.title:
        yield rule.title
    if beside := shared_with(ranked, first):
        yield beside
    if not ranked.row.exact:
        yield INEXACT
    if ranked.provided:
        yield ranked.provided.removeprefix(", ")


def trifles(diagnosis: Diagnosis) -> str:
    """What is too small to speak of, in a sentence; empty without any."""
    return trifles_in(ranking(diagnosis), _TRIFLES)


def informing(diagnosis: Diagnosis) -> list[RuleResult]:
    """Rules that fire and have no row of their own among the things to do."""
    rows = ranking(diagnosis)
    return [rule for row in rows for rule in (row.rules[1:] if row.leads else row.rules)]


def confidence_in(gain: Gain | None) -> str:
    """From the method and the width of the band: 10 ms of 8 to 12 is `high`, of 5 to 15 `medium`,
    and an upper bound is always `low`."""
    if gain is None or gain.high_ms is None or gain.method == "none":
        return "not predicted"
    if gain.method == "ceiling" or gain.mid_ms is None or gain.low_ms is None or gain.mid_ms <= 0:
        return "low"
    half = (gain.high_ms - gain.low_ms) / 2 / gain.mid_ms
    return "high" if half <= _SURE_FRAC else "medium" if half <= _LIKELY_FRAC else "low"


def dialects_of(found: Sequence[Shown]) -> list[tuple[str, str]]:
    """(dialect, title) of every dialect that has something to paste."""
    advice = [a for o in found if o.ranked.rule is not None for a in o.ranked.rule.advice]
    there = {spelled.dialect for a in advice for spelled in snippets(a)}
    titles = {**DIALECT_TITLES, "other": "other"}
    return [(dialect, titles[dialect]) for dialect in titles if dialect in there]


def _members(combined: Combined | None) -> list[str]:
    """Keys of the changes in the sets, in the order of the sets of one; none where there is nothing to choose
    between."""
    keys = list(dict.fromkeys(key for s in combined.sets for key in s.keys)) if combined else []
    return keys if len(keys) > 1 else []


def choices(diagnosis: Diagnosis) -> Choices | None:
    """What can be chosen, and every set's gain. None where no two changes were simulated together."""
    combined = diagnosis.combined
    keys = _members(combined)
    if combined is None or not keys:
        return None
    predictions = {p.key: p for p in diagnosis.analyses.gains.predictions}
    names = [_name(key, predictions) for key in keys]
    step_ns = replayed_ns(diagnosis)
    excluded = excluding(diagnosis.rules)
    possible = [s for s in combined.sets if not any(pair <= set(s.keys) for pair in excluded)]
    reasons = [combined.sets_reason] if combined.sets_reason else []
    if len(possible) < len(combined.sets):
        pairs = ", ".join(f"{shorten(a, 48)} with {shorten(b, 48)}" for a, b in excluded.values())
        reasons.append(f"no set holds settings that exclude each other: {pairs}")
    alone = {s.keys[0]: gain_figures(s.gain)[0] for s in combined.sets if len(s.keys) == 1}
    return Choices(
        changes=[(name, alone.get(key, UNKNOWN)) for key, name in zip(keys, names, strict=True)],
        sets=[
            SetOfChanges(
                members=",".join(str(at) for at in sorted(keys.index(key) for key in s.keys)),
                names=[names[keys.index(key)] for key in s.keys],
                gain=gain_figures(s.gain)[0],
                band=gain_figures(s.gain)[1],
                share=share((s.gain.mid_ms or 0.0) * 1e6 / step_ns) if step_ns else "",
            )
            for s in possible
        ],
        reason="; ".join(reasons),
    )


def _name(key: str, predictions: dict[str, Prediction]) -> str:
    return shorten(predictions[key].change if key in predictions else key, 96)
