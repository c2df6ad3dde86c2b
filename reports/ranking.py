"""The one order of findings and simulated changes, as every report shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfdoc.reports.advice import provided_words, rough
from perfdoc.reports.sections.section import opening
from perfdoc.results import Diagnosis, Gain, Opportunity, Prediction, RuleResult
from perfdoc.results.figures import UNKNOWN, share
from perfdoc.results.names import shorten
from perfdoc.results.ranking import TRIFLE_FRAC, OpportunityKind, is_trifle, settings_of, worth_frac

INEXACT = "changes what training computes"


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One row of the ranking with what it refers to."""

    row: Opportunity
    rules: list[RuleResult]
    """Those that fire on it, in its order."""
    prediction: Prediction | None
    """None where nothing was simulated for it."""

    @property
    def own(self) -> bool:
        """Whether the change that was simulated is what the first rule itself proposes."""
        gain = self.rules[0].gain if self.rules else None
        return self.prediction is None or (gain is not None and gain.key == self.prediction.key)

    @property
    def title(self) -> str:
        """What to do: the simulated change, else what the rule advises; both where a setting makes the change
        under open conditions."""
        if self.prediction is None:
            return (
                shorten(self.rules[0].action or self.rules[0].title)
                if self.rules
                else shorten(self.row.key, 96)
            )
        change = shorten(self.prediction.change, 96)
        if not self.rules or not self.row.conditions or not self.prediction.settings:
            return change
        return f"{shorten(self.rules[0].action or self.rules[0].title)}: {change}"

    @property
    def provided(self) -> str:
        """What the change takes, with the comma before it; empty where nothing is open."""
        return provided_words(self.row.conditions)

    @property
    def sized(self) -> bool:
        """Whether it has a figure, predicted or as an upper bound, that is no trifle."""
        return self.row.kind in ("predicted", "bound")

    @property
    def leads(self) -> bool:
        """Whether it is one of the things to do: neither a trifle nor information without a figure."""
        if self.row.kind in ("unmeasured", "capture"):
            return any(rule.level == "problem" for rule in self.rules)
        return self.row.kind != "trifle"


def ranking(diagnosis: Diagnosis) -> list[Ranked]:
    """Every row; of a diagnosis of a version that ranked nothing, its rules by gain."""
    rules = {rule.code: rule for rule in diagnosis.rules if rule.state == "fires"}
    predictions = {p.key: p for p in diagnosis.analyses.gains.predictions}
    known = {code for row in diagnosis.opportunities for code in row.codes}
    found = [
        Ranked(
            row=row,
            rules=[rules[code] for code in row.codes if code in rules],
            prediction=predictions.get(row.key),
        )
        for row in diagnosis.opportunities
    ]
    rest = [r for r in diagnosis.rules if r.state == "fires" and r.code not in known]
    return [*found, *sorted(_of_rules(rest, predictions), key=_place)]


def _of_rules(rules: Sequence[RuleResult], predictions: dict[str, Prediction]) -> Iterator[Ranked]:
    for rule in sorted(rules, key=lambda r: r.code):
        key = rule.gain.key if rule.gain is not None else ""
        row = Opportunity(
            kind=_kind(rule),
            codes=[rule.code],
            key=key,
            gain=rule.gain,
            gain_per=rule.gain_per,
            gain_frac=rule.gain_frac,
            exact=key not in predictions or predictions[key].exact,
        )
        set_ = any(not a.forbidden for a in rule.advice)
        informs = rule.level != "problem"
        row = replace(row, worth_frac=worth_frac(row, by_setting=set_, informs=informs))
        row = replace(row, settings=settings_of([rule], predictions.get(key), rules))
        yield Ranked(row=row, rules=[rule], prediction=predictions.get(key))


def _kind(rule: RuleResult) -> OpportunityKind:
    gain = rule.gain
    if rule.code.startswith("PD9"):
        return "capture"
    if gain is None or gain.high_ms is None:
        return "unmeasured"
    if rule.gain_frac is not None and is_trifle(rule.gain_frac, 1.0):
        return "trifle"
    return "predicted" if gain.is_predicted else "bound"


def _place(ranked: Ranked) -> tuple[int, float, float]:
    kind, gain = ranked.row.kind, ranked.row.gain
    order = {"unmeasured": 1 if ranked.leads else 2, "trifle": 3, "capture": 4}.get(kind, 0)
    most = 0.0 if gain is None else (gain.mid_ms if gain.is_predicted else gain.high_ms) or 0.0
    return order, -(ranked.row.worth_frac or 0.0), -most


def in_order(diagnosis: Diagnosis, rules: Sequence[RuleResult]) -> list[RuleResult]:
    """Rules in the order of the ranking, those that do not fire behind, by code."""
    place = {id(rule): at for at, rule in enumerate(r for row in ranking(diagnosis) for r in row.rules)}
    return sorted(rules, key=lambda rule: (place.get(id(rule), len(place)), rule.code))


def gain_figures(gain: Gain | None) -> tuple[str, str]:
    """(figure, band) of a gain; of an upper bound, the bound; of a loss, what it costs."""
    if gain is None or gain.high_ms is None:
        return UNKNOWN, ""
    if not gain.is_predicted or gain.mid_ms is None or gain.low_ms is None:
        return f"≤ {rough(gain.high_ms)}", ""
    if gain.mid_ms < 0:
        return f"costs {rough(-gain.mid_ms)}", f"{rough(-gain.high_ms)} to {rough(-gain.low_ms)}"
    return rough(gain.mid_ms), f"{rough(gain.low_ms)} to {rough(gain.high_ms)}"


def notes_on(ranked: Ranked) -> list[str]:
    """What makes the row less sure than its figure."""
    found = [] if ranked.row.exact else [INEXACT]
    return [*found, "under conditions"] if ranked.row.conditions else found


TABLE_HEAD = ("saves", "share", "band", "rule", "what to do")
TABLE_ALIGN = "rrlll"


def row_cells(ranked: Ranked) -> list[str]:
    """A row of a table under TABLE_HEAD."""
    figure, band = gain_figures(ranked.row.gain)
    frac = ranked.row.gain_frac
    return [
        figure,
        "" if frac is None or figure == UNKNOWN else share(frac),
        band or ("" if figure == UNKNOWN else "upper bound"),
        ", ".join(shorten(rule.code, 48) for rule in ranked.rules) or UNKNOWN,
        opening(ranked.title) + "".join(f"; {note}" for note in notes_on(ranked)),
    ]


def without_figure(ranked: Sequence[Ranked]) -> str:
    """Those of the things to do that have no figure, in one sentence; empty without any."""
    names = [
        f"{shorten(r.rules[0].code, 48)} {r.title}" for r in ranked if r.leads and not r.sized and r.rules
    ]
    return f"Also to do, without a figure: {'; '.join(names)}." if names else ""


def conditions_in(ranked: Sequence[Ranked]) -> str:
    """What the rows `under conditions` take, in one sentence; empty without any."""
    found = [
        (r.prediction.change if r.prediction else r.title, r.provided) for r in ranked if r.row.conditions
    ]
    said = [f"{shorten(change, 96)}{provided}" for change, provided in found]
    return f"Under conditions: {'; '.join(said)}." if said else ""


def trifles_in(ranked: Sequence[Ranked], most: int) -> str:
    """What is too small to speak of, in one sentence; empty without any."""
    small = [f"{r.title} ({gain_figures(r.row.gain)[0]})" for r in ranked if r.row.kind == "trifle"]
    more = f" and {len(small) - most} more" if len(small) > most else ""
    head = f"Trifles, under {share(TRIFLE_FRAC)} or within the replay's error"
    return f"{head}: {', '.join(small[:most])}{more}." if small else ""
