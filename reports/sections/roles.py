"""Roles in words and tables, for every renderer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from perfdoc.reports.leaves import LABELS, LEAVES, family_values, leaf_values
from perfdoc.reports.sections.section import Cell, Grid, Section, count, name, share, time, word
from perfdoc.results import Diagnosis, Rank, figures
from perfdoc.results.names import listed, shorten
from perfdoc.results.roles import (
    FEWEST,
    FEWEST_CENTRED,
    LEAST_FRAC,
    LEAST_MAD,
    STEP,
    Role,
    RoleDeviation,
    RoleOutlier,
    RolesAnalysis,
    length_ns,
    shares_of,
)

_LEAST_SHOWN = 0.01
"""Leaves that no role spends so much on, and no outlier is about, have no column."""
_NAMED = 3
_OUTLIERS, _WAITING = 16, 4
_ROLES = 64
_ALIKE_FRAC = 0.001
_PLACE_WORDS = {"tp": "TP", "cp": "CP", "dp": "DP"}
_HOW = {
    "stages": "Roles are the stages of the pipeline",
    "numbers": "Roles are pipeline stages by rank number, stages outermost",
    "calls": "Stages are not known: roles are ranks with equally many calls of each collective",
    "kinds": "Stages are not known: roles are ranks with the same kinds of collectives",
    "one": "No stages are known and all ranks communicate alike: they are one role",
    "unlike": "No stages are known and ranks communicate in too many ways to tell roles: they are one",
}


def roles_section(diagnosis: Diagnosis, roles: RolesAnalysis) -> Section:
    """What each role does, who differs from it, and which place of the layout does."""
    grids = (
        role_grid(roles),
        outlier_grid(diagnosis, roles),
        unjudged_grid(diagnosis, roles),
        _place_grid(diagnosis, roles),
    )
    return Section(
        key="roles",
        title=f"Roles of {figures.plural(len(diagnosis.ranks), 'rank')}",
        sentences=roles_sentences(diagnosis, roles),
        grids=[grid for grid in grids if grid.rows],
    )


def roles_sentences(diagnosis: Diagnosis, roles: RolesAnalysis) -> list[str]:
    """Who differs, how roles were made, and what differing means."""
    return [outlier_sentence(diagnosis, roles), *_how(roles)]


def outlier_sentence(diagnosis: Diagnosis, roles: RolesAnalysis) -> str:
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


def _unjudged(diagnosis: Diagnosis, roles: RolesAnalysis) -> str:
    """Members of roles that are too small, the first of them by name."""
    found = roles.unjudged
    if not found:
        return ""
    named = [
        f"{shorten(diagnosis.ranks[i].label, 64)} ({roles.roles[roles.role_of[i]].label})" for i in found
    ]
    return f"not judged, for their roles have fewer than {FEWEST_CENTRED} ranks: {listed(named, _NAMED)}"


def _said(diagnosis: Diagnosis, roles: RolesAnalysis, each: RoleOutlier) -> str:
    role = _against(roles, each)
    of = "" if each.lead.figure == STEP else " of the window"
    by = figures.signed_share(each.lead.by_frac)
    label = shorten(diagnosis.ranks[each.rank].label, 64)
    return f"{label} ({role}), {_what(roles, each.lead)} {by}{of}"


def _against(roles: RolesAnalysis, each: RoleOutlier) -> str:
    """Its role, and whom it is held against where that is not its role."""
    role = roles.roles[each.role].label
    return f"{role}, against all inner stages" if each.among_stages else role


def _what(roles: RolesAnalysis, each: RoleDeviation) -> str:
    return _length(roles) if each.figure == STEP else LABELS[each.figure]


def _length(roles: RolesAnalysis) -> str:
    return "step time" if roles.steps else "window"


def _how(roles: RolesAnalysis) -> Iterator[str]:
    places = roles.places
    said = _HOW[roles.based_on]
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


def shown_leaves(roles: RolesAnalysis) -> list[int]:
    """Indices of the leaves that are worth a column, in the ledger's order."""
    told = {part.figure for each in roles.outliers for part in (each.lead, *each.others)}
    return [
        leaf
        for leaf, drawn in enumerate(LEAVES)
        if drawn.path in told
        or any(role.shares[drawn.path].median_frac >= _LEAST_SHOWN for role in roles.roles)
    ]


def role_grid(roles: RolesAnalysis, most: int = _ROLES) -> Grid:
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


def _grid_of_roles(
    roles: RolesAnalysis,
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
    of = role.shares[LEAVES[leaf].path]
    middle, low, high = (figures.share(part) for part in (of.median_frac, of.low_frac, of.high_frac))
    if low == high:
        return middle
    return f"{middle} ({low.removesuffix(' %')} to {high.removesuffix(' %')})"


def shown_outliers(roles: RolesAnalysis, most: int = _OUTLIERS) -> list[RoleOutlier]:
    """The first ones that spend more themselves, and a few of those that only wait: they may be many, for one
    rank that is late."""
    own = [each for each in roles.outliers if not each.comm_alone][:most]
    waiting = [each for each in roles.outliers if each.comm_alone]
    return own + waiting[: max(min(_WAITING, most - len(own)), most // 2 - len(own), 0)]


def outlier_grid(diagnosis: Diagnosis, roles: RolesAnalysis, most: int = _OUTLIERS) -> Grid:
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
                *_both(diagnosis, roles, each),
                Cell(text=figures.signed_share(each.lead.by_frac)),
                Cell(text=_others(roles, each.others)),
            ]
            for each in shown
        ],
    )


def unjudged_grid(diagnosis: Diagnosis, roles: RolesAnalysis, most: int = _OUTLIERS) -> Grid:
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
                time(length_ns(diagnosis.ranks[i], steps=roles.steps)),
                *_few_cells(diagnosis.ranks[i]),
            ]
            for i in shown
        ],
    )


def _few_cells(rank: Rank) -> list[Cell]:
    values = family_values(leaf_values(rank.ledger_ns))
    return [share(values[family] / max(rank.ledger_ns.total, 1)) for family in _SAID_OF_FEW.values()]


_SAID_OF_FEW = {"compute": "compute", "exposed communication": "exposed_comm", "idle": "idle"}


def _both(diagnosis: Diagnosis, roles: RolesAnalysis, each: RoleOutlier) -> tuple[Cell, Cell]:
    if each.lead.figure == STEP:
        # Its role's, or that of the roles which are judged together.
        own = length_ns(diagnosis.ranks[each.rank], steps=roles.steps)
        value, usual = each.lead.value_frac, each.lead.usual_frac
        return time(own), time(round(own / value * usual) if value else 0)
    return share(each.lead.value_frac), share(each.lead.usual_frac)


def _others(roles: RolesAnalysis, found: Sequence[RoleDeviation]) -> str:
    said = [f"{_what(roles, each)} {figures.signed_share(each.by_frac)}" for each in found[:_NAMED]]
    return ", ".join(said) + (f", {len(found) - _NAMED} more" if len(found) > _NAMED else "")


def _place_grid(diagnosis: Diagnosis, roles: RolesAnalysis) -> Grid:
    """A row a dimension: which of its places differs most from the roles, over all ranks there."""
    shares = [shares_of(rank) for rank in diagnosis.ranks]
    rows = []
    for key, size in roles.places.sizes.items():
        by, place, leaf = max(_off(roles, shares, key), key=lambda each: abs(each[0]))
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


def _off(
    roles: RolesAnalysis, shares: Sequence[Sequence[float]], key: str
) -> Iterator[tuple[float, int, int]]:
    """(median over the ranks of a place, each against its role; place; leaf)."""
    members: dict[int, list[int]] = {}
    for i, place in enumerate(roles.places.of[key]):
        members.setdefault(place, []).append(i)
    role_of = roles.role_of
    for leaf, drawn in enumerate(LEAVES):
        usual = [role.shares[drawn.path].median_frac for role in roles.roles]
        off = [own[leaf] - usual[at] for own, at in zip(shares, role_of, strict=True)]
        for place, of in members.items():
            yield median(off[i] for i in of), place, leaf
