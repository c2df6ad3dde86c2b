"""What there is to do, in the order of the diagnosis, with the rules and the simulated change of each row."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.records import dataclass
from perfdoc.reports.advice import provided_words, rough
from perfdoc.reports.sections.section import Cell, Grid, grid_of
from perfdoc.results import Diagnosis, Gain, Opportunity, Prediction, RuleResult
from perfdoc.results.figures import UNKNOWN, gib, share
from perfdoc.results.names import listed, opening, prose, sentences, shorten
from perfdoc.results.ranking import TRIFLE_FRAC
from perfdoc.results.replay import WITHOUT_STRAGGLER
from perfdoc.results.rules import NOTHING_TO_SET

INEXACT = "changes numerics"


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
    def rule(self) -> RuleResult | None:
        """The rule whose finding it is; None where no rule proposes the change."""
        return self.rules[0] if self.rules else None

    @property
    def title(self) -> str:
        """What to do: the simulated change, else what the rule advises; both where a setting makes the change
        under open conditions."""
        advised = shorten(self.rule.action or self.rule.title) if self.rule is not None else ""
        if self.prediction is None:
            return advised or shorten(self.row.key, 96)
        change = shorten(self.prediction.change if self.row.settings else self._change[0], 96)
        if advised and self.row.key.startswith(WITHOUT_STRAGGLER):
            return advised  # what was simulated is nothing to do
        if not advised or not self.row.conditions or not self.prediction.settings:
            return change
        return f"{advised}: {change}"

    @property
    def _change(self) -> tuple[str, str]:
        """(the simulated change, how it is made), of `CUDA graphs (torch.cuda.CUDAGraph)`."""
        name, _, way = ("" if self.prediction is None else self.prediction.change).partition(" (")
        return name, way.removesuffix(")")

    @property
    def figure(self) -> str:
        """What it saves or costs."""
        frees_bytes = self.rule.frees_bytes if self.rule and self.row.kind == "unmeasured" else None
        return gain_figures(self.row.gain)[0] if frees_bytes is None else f"≤ {gib(frees_bytes)}"

    @property
    def no_figure(self) -> str:
        """Why there is none; empty where there is one."""
        if self.figure != UNKNOWN:
            return ""
        if self.row.kind == "capture":
            return "shows more, saves nothing"
        said = self.row.gain.assumptions[:1] if self.row.gain is not None else []
        return prose(said[0]) if said else "not measured in time"

    @property
    def band(self) -> str:
        """Of a prediction; empty for others."""
        return gain_figures(self.row.gain)[1]

    @property
    def share(self) -> str:
        """Of the step; empty where there is no figure."""
        frac = self.row.gain_frac
        return "" if frac is None or self.figure == UNKNOWN else share(frac)

    @property
    def provided(self) -> str:
        """What the change takes, with the comma before it; empty where nothing is open."""
        return provided_words(self.row.conditions)

    @property
    def inexact(self) -> str:
        """That it changes numerics, with the mark before it; empty where it does not."""
        return "" if self.row.exact else f"; {INEXACT}"

    @property
    def sized(self) -> bool:
        """Whether it has a figure, predicted or as an upper bound, that is no trifle."""
        return self.row.kind in ("predicted", "bound")

    @property
    def stuck(self) -> bool:
        """Whether nothing can be done about it here: all that would help is forbidden."""
        return bool(self.rules) and self.own and self.rules[0].remedy == NOTHING_TO_SET

    @property
    def remedy(self) -> str:
        """What to do where no setting makes it; empty where its title says how."""
        if self.row.settings:
            return ""
        if not self.rules or (not self.own and self.row.conditions):
            way = self._change[1]  # a change under conditions is not what the rule would do first
            return f"{'Change' if way.isidentifier() else 'Use'} {way}." if way else ""
        said = self.rules[0].remedy
        return "" if said == NOTHING_TO_SET or sentences(said)[:1] == [f"{self.title}."] else said

    @property
    def leads(self) -> bool:
        """Whether it is one of the things to do: neither a trifle nor information without a figure,
        but of what the verdict is about."""
        if self.stuck:
            return False
        if self.row.kind in ("unmeasured", "capture"):
            return bool(self.row.blamed) or any(rule.level == "problem" for rule in self.rules)
        return self.row.kind != "trifle"


def ranking(diagnosis: Diagnosis) -> list[Ranked]:
    """Every row, in the order that the diagnosis has them."""
    rules = {rule.code: rule for rule in diagnosis.rules if rule.state == "fires"}
    predictions = {p.key: p for p in diagnosis.analyses.gains.predictions}
    return [
        Ranked(
            row=row,
            rules=[rules[code] for code in row.codes if code in rules],
            prediction=predictions.get(row.key),
        )
        for row in diagnosis.opportunities
    ]


def in_order(diagnosis: Diagnosis, rules: Sequence[RuleResult]) -> list[RuleResult]:
    """Rules in the order of the ranking, those that do not fire behind, by code."""
    codes = dict.fromkeys(code for row in diagnosis.opportunities for code in row.codes)
    place = {code: at for at, code in enumerate(codes)}
    return sorted(rules, key=lambda rule: (place.get(rule.code, len(place)), rule.code))


def gain_figures(gain: Gain | None) -> tuple[str, str]:
    """(figure, band) of a gain; of an upper bound, the bound; of a loss, what it costs."""
    if gain is None or gain.high_ms is None:
        return UNKNOWN, ""
    if not gain.is_predicted or gain.mid_ms is None or gain.low_ms is None:
        return f"≤ {rough(gain.high_ms)}", ""
    if gain.mid_ms < 0:
        return f"costs {rough(-gain.mid_ms)}", f"{rough(-gain.high_ms)} to {rough(-gain.low_ms)}"
    return rough(gain.mid_ms), f"{rough(gain.low_ms)} to {rough(gain.high_ms)}"


def ranking_grid(ranked: Sequence[Ranked], most: int) -> Grid:
    """A row for each thing to do."""
    return grid_of(
        ranked,
        ("saves", "r", lambda r: Cell(text=r.figure)),
        ("share", "r", lambda r: Cell(text=r.share)),
        ("band", "l", lambda r: Cell(text=r.band or ("" if r.figure == UNKNOWN else "upper bound"))),
        ("rule", "l", lambda r: Cell(text=", ".join(shorten(c.code, 48) for c in r.rules) or UNKNOWN)),
        ("what to do", "l", lambda r: Cell(text=f"{opening(r.title)}{r.provided}{r.inexact}")),
        most=most,
    )


def stuck_in(ranked: Sequence[Ranked]) -> str:
    """What nothing can be done about here, in one sentence; empty without any."""
    said = [f"{shorten(r.rules[0].code, 48)} {r.title} ({r.share or r.figure})" for r in ranked if r.stuck]
    return f"Nothing to change here, since what would help is forbidden: {'; '.join(said)}." if said else ""


def trifles_in(ranked: Sequence[Ranked], most: int) -> str:
    """What is too small to speak of, or may cost more than it saves, in one sentence; empty without any."""
    small = [f"{r.title} ({r.figure})" for r in ranked if r.row.kind == "trifle"]
    head = f"Too small to matter (under {share(TRIFLE_FRAC)}, or within error), or may well cost time"
    return f"{head}: {listed(small, most)}." if small else ""
