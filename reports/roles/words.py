"""Roles in words and tables, for every renderer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from perfdoc.reports.leaves import FAMILIES, LEAVES
from perfdoc.reports.roles.groups import Role, Roles
from perfdoc.reports.roles.outliers import (
    FEWEST,
    FEWEST_CENTRED,
    LEAST_FRAC,
    LEAST_MAD,
    STEP,
    Deviation,
    Outlier,
)
from perfdoc.reports.sections.section import Cell, Grid, Section, count, name, time, word
from perfdoc.results import Diagnosis, figures
from perfdoc.results.names import shorten

_LEAST_SHOWN = 0.01
"""Leaves that no role spends so much on, and no outlier is about, have no column."""
_NAMED = 3
_OUTLIERS, _WAITING = 16, 4
_ROLES = 64
_ALIKE_FRAC = 0.001
_PLACE_WORDS = {"tp": "TP", "cp": "CP", "dp": "DP", "ep": "EP"}
_HOW = {
    "stages": "Roles are the stages of the pipeline",
    "numbers": "Roles are pipeline stages by rank number, stages outermost",
    "calls": "Stages are not known: roles are ranks with equally many calls of each collective",
    "kinds": "Stages are not known: roles are ranks with the same kinds of collectives",
    "one": "No stages are known and all ranks communicate alike: they are one role",
    "unlike": "No stages are known and ranks communicate in too many ways to tell roles: they are one",
}


def roles_section(diagnosis: Diagnosis, roles: Roles) -> Section:
    """What each role does, who differs from it, and which place of the layout does."""
    grids = (
        role_grid(roles),
        outlier_grid(diagnosis, roles),
        unjudged_grid(diagnosis, roles),
        _place_grid(roles),
    )
    return Section(
        key="roles",
        title=f"Roles of {figures.plural(len(diagnosis.ranks), 'rank')}",
        sentences=roles_sentences(diagnosis, roles),
        grids=[grid for grid in grids if grid.rows],
    )


def roles_sentences(diagnosis: Diagnosis, roles: Roles) -> list[str]:
    """Who differs, how roles were made, and what differing means."""
    return [outlier_sentence(diagnosis, roles), *_how(roles)]


def outlier_sentence(diagnosis: Diagnosis, roles: Roles) -> str:
    """Who differs, the first of them by name; and who could not be judged."""
    ranks = figures.plural(len(diagnosis.ranks), "rank")
    of = f"{ranks} in {figures.plural(len(roles.roles), 'role')}"
    apart = _unjudged(diagnosis, roles)
    if not roles.outliers:
        left = len(diagnosis.ranks) - len(roles.unjudged)
        alike = f"the {left:,} that can be judged are alike; " if left else ""
        return f"{of}: {alike + apart if apart else 'none differs from its role'}."
    first = [each for each in roles.outliers if not each.comm_alone]
    named = [_said(diagnosis, roles, each) for each in (first or roles.outliers)[:_NAMED]]
    said = f"{of}; {len(roles.outliers):,} of them {'differs' if len(roles.outliers) == 1 else 'differ'}"
    rest = len(first) - _NAMED
    said += f": {'; '.join(named)}" + (f"; {rest:,} more" if first and rest > 0 else "")
    waiting = len(roles.outliers) - len(first)
    if first and waiting:
        said += f"; {figures.plural(waiting, 'rank')} only in communication or in less work"
    return f"{said}; {apart}." if apart else f"{said}."


def _unjudged(diagnosis: Diagnosis, roles: Roles) -> str:
    """Members of roles that are too small, the first of them by name."""
    found = roles.unjudged
    if not found:
        return ""
    named = ", ".join(
        f"{shorten(diagnosis.ranks[i].label, 64)} ({roles.roles[roles.role_of[i]].label})"
        for i in found[:_NAMED]
    )
    rest = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return f"not judged, for their roles have fewer than {FEWEST_CENTRED} ranks: {named}{rest}"


def _said(diagnosis: Diagnosis, roles: Roles, each: Outlier) -> str:
    role = _against(roles, each)
    of = "" if each.lead.figure == STEP else " of the window"
    by = figures.signed_share(each.lead.by)
    return f"{_label(diagnosis, each)} ({role}), {_what(roles, each.lead)} {by}{of}"


def _against(roles: Roles, each: Outlier) -> str:
    """Its role, and whom it is held against where that is not its role."""
    role = roles.roles[each.role].label
    return f"{role}, against all inner stages" if each.among_stages else role


def _label(diagnosis: Diagnosis, each: Outlier) -> str:
    return shorten(diagnosis.ranks[each.rank].label, 64)


def _what(roles: Roles, each: Deviation) -> str:
    return _length(roles) if each.figure == STEP else LEAVES[each.figure].label


def _length(roles: Roles) -> str:
    return "step time" if roles.steps else "window"


def _how(roles: Roles) -> Iterator[str]:
    places = roles.places
    said = _HOW[roles.how]
    if places.refuted:
        said += "; groups of the captures contradict places by rank number"
    if places.sizes:
        listed = ", ".join(f"{_PLACE_WORDS[key]} {size:,}" for key, size in places.sizes.items())
        held = (
            f"{figures.plural(places.agreeing, 'group')} of the captures agree"
            if places.agreeing
            else "not held against any group"
        )
        said += f"; places in {listed} are by rank number, TP fastest ({held})"
    yield f"{said}."
    yield (
        f"A rank differs where a share of its window, or its {_length(roles)}, is more than {LEAST_MAD} "
        "median absolute deviations (more of them in roles of few ranks) and more than "
        f"{figures.share(LEAST_FRAC)} from the median of its role."
    )
    if any(len(role.members) < FEWEST for role in roles.roles):
        yield (
            f"Roles of {FEWEST_CENTRED} or {FEWEST - 1} ranks are judged by the spread in all roles; "
            "inner stages of fewer are judged together, and one that differs may have more layers."
        )


def shown_leaves(roles: Roles) -> list[int]:
    """Indices of the leaves that are worth a column, in the ledger's order."""
    told = {part.figure for each in roles.outliers for part in (each.lead, *each.others)}
    return [
        leaf
        for leaf in range(len(LEAVES))
        if leaf in told or any(role.shares[leaf].median >= _LEAST_SHOWN for role in roles.roles)
    ]


def family_medians(roles: Roles, role: Role) -> dict[str, float]:
    """Median share of each family of leaves over the ranks of a role."""
    return {family: median(_of_family(roles, i, family) for i in role.members) for family in FAMILIES}


def role_grid(roles: Roles, most: int = _ROLES) -> Grid:
    """A row a role, of many those that compute longest: its ranks, step time, and the median share of each
    leaf, with its spread."""
    shown = shown_leaves(roles)
    spread = any(r.step_high_ns - r.step_low_ns > _ALIKE_FRAC * r.step_ns for r in roles.roles)
    return _grid_of_roles(
        roles,
        most,
        caption="Median of each role; in brackets the 5th to the 95th percentile, where it differs",
        head=["role", "ranks", _length(roles), *(("5th percentile", "95th percentile") if spread else ())],
        leaves=[LEAVES[leaf].label for leaf in shown],
        rest=lambda role: [
            *((time(role.step_low_ns), time(role.step_high_ns)) if spread else ()),
            *(Cell(text=_spread(role, leaf)) for leaf in shown),
        ],
    )


def role_grid_by_letter(roles: Roles, shown: Sequence[int], most: int) -> Grid:
    """As role_grid, for a narrow page: the medians of these leaves alone, under their letters."""
    return _grid_of_roles(
        roles,
        most,
        head=["median % of window", "ranks", _length(roles)],
        leaves=[LEAVES[leaf].letter for leaf in shown],
        rest=lambda role: [
            Cell(text=figures.share(role.shares[leaf].median).removesuffix(" %")) for leaf in shown
        ],
    )


def _grid_of_roles(
    roles: Roles,
    most: int,
    *,
    head: Sequence[str],
    leaves: Sequence[str],
    rest: Callable[[Role], Sequence[Cell]],
    caption: str = "",
) -> Grid:
    """rest: of a role, the cells behind its name, count and length."""
    return Grid(
        caption=caption,
        head=[*head, *leaves],
        align="l" + "r" * (len(head) + len(leaves) - 1),
        rows=[
            [word(role.label), count(len(role.members)), time(role.step_ns), *rest(role)]
            for role in roles.heaviest(most)
        ],
        left_out=max(0, len(roles.roles) - most),
    )


def _spread(role: Role, leaf: int) -> str:
    of = role.shares[leaf]
    middle, low, high = (figures.share(part) for part in (of.median, of.low, of.high))
    if low == high:
        return middle
    return f"{middle} ({low.removesuffix(' %')} to {high.removesuffix(' %')})"


def shown_outliers(roles: Roles, most: int = _OUTLIERS) -> list[Outlier]:
    """The first ones that spend more themselves, and a few of those that only wait: they may be many, for one
    rank that is late."""
    own = [each for each in roles.outliers if not each.comm_alone][:most]
    waiting = [each for each in roles.outliers if each.comm_alone]
    return own + waiting[: max(min(_WAITING, most - len(own)), most // 2 - len(own), 0)]


def outlier_grid(diagnosis: Diagnosis, roles: Roles, most: int = _OUTLIERS) -> Grid:
    """A row a rank that differs, those first that spend more themselves."""
    shown = shown_outliers(roles, most)
    part = "" if len(shown) == len(roles.outliers) else f" ({len(shown):,} of {len(roles.outliers):,})"
    return Grid(
        caption=f"Ranks that differ from their role{part}",
        head=["rank", "role", "in", "its", "usual", "by", "and in"],
        align="lllrrrl",
        rows=[
            [
                name(diagnosis.ranks[each.rank].label, 64),
                word(_against(roles, each)),
                word(_what(roles, each.lead)),
                *_both(roles, each),
                Cell(text=figures.signed_share(each.lead.by)),
                Cell(text=_others(roles, each.others)),
            ]
            for each in shown
        ],
    )


def unjudged_grid(diagnosis: Diagnosis, roles: Roles, most: int = _OUTLIERS) -> Grid:
    """A row a rank whose role is too small, those first that compute most."""
    shown = roles.unjudged[:most]
    part = "" if len(shown) == len(roles.unjudged) else f" ({len(shown):,} of {len(roles.unjudged):,})"
    return Grid(
        caption=f"Ranks of roles too small to judge{part}",
        head=["rank", "role", _length(roles), *_SAID_OF_FEW],
        align="llr" + "r" * len(_SAID_OF_FEW),
        rows=[
            [
                name(diagnosis.ranks[i].label, 64),
                word(roles.roles[roles.role_of[i]].label),
                time(roles.steps_ns[i]),
                *(Cell(text=figures.share(_of_family(roles, i, family))) for family in _SAID_OF_FEW.values()),
            ]
            for i in shown
        ],
    )


_SAID_OF_FEW = {"compute": "compute", "exposed communication": "exposed_comm", "idle": "idle"}


def _of_family(roles: Roles, i: int, family: str) -> float:
    return sum(own for own, leaf in zip(roles.shares[i], LEAVES, strict=True) if leaf.family == family)


def _both(roles: Roles, each: Outlier) -> tuple[Cell, Cell]:
    if each.lead.figure == STEP:
        # Its role's, or that of the roles which are judged together.
        own = roles.steps_ns[each.rank]
        return time(own), time(round(own / each.lead.value * each.lead.usual) if each.lead.value else 0)
    return Cell(text=figures.share(each.lead.value)), Cell(text=figures.share(each.lead.usual))


def _others(roles: Roles, found: Sequence[Deviation]) -> str:
    said = [f"{_what(roles, each)} {figures.signed_share(each.by)}" for each in found[:_NAMED]]
    return ", ".join(said) + (f", {len(found) - _NAMED} more" if len(found) > _NAMED else "")


def _place_grid(roles: Roles) -> Grid:
    """A row a dimension: which of its places differs most from the roles, over all ranks there."""
    rows = []
    for key, size in roles.places.sizes.items():
        by, place, leaf = max(_off(roles, key), key=lambda each: abs(each[0]))
        alike = abs(by) < _ALIKE_FRAC
        rows.append(
            [
                word(_PLACE_WORDS[key]),
                count(size),
                word(figures.UNKNOWN if alike else f"{_PLACE_WORDS[key]} {place}"),
                word("alike" if alike else LEAVES[leaf].label),
                Cell(text=f"under {figures.share(_ALIKE_FRAC)}" if alike else figures.signed_share(by)),
            ]
        )
    return Grid(
        caption="Places of the layout: the one whose ranks differ most from their roles (median)",
        head=["dimension", "places", "place", "in", "by"],
        align="lrllr",
        rows=rows,
    )


def _off(roles: Roles, key: str) -> Iterator[tuple[float, int, int]]:
    """(median over the ranks of a place, each against its role; place; leaf)."""
    members: dict[int, list[int]] = {}
    for i, place in enumerate(roles.places.of[key]):
        members.setdefault(place, []).append(i)
    for leaf in range(len(LEAVES)):
        usual = [role.shares[leaf].median for role in roles.roles]
        off = [own[leaf] - usual[at] for own, at in zip(roles.shares, roles.role_of, strict=True)]
        for place, of in members.items():
            yield median(off[i] for i in of), place, leaf
