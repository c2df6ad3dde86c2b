"""Every rank's figures as the page's scripts read them: columns of numbers, no markup."""

from __future__ import annotations

from markupsafe import Markup

from perfdoc.reports.inlined import island
from perfdoc.reports.leaves import LEAVES, leaf_values
from perfdoc.reports.roles.groups import Roles
from perfdoc.results import Diagnosis, figures
from perfdoc.results.names import base_name, shorten

MOST_RANKS = 16_384
"""On the page: more ranks than that are in diagnosis.json alone."""


def ranks_island(diagnosis: Diagnosis, roles: Roles) -> Markup:
    """JSON for a script element of a data type: a column for each figure, in the order of the ranks."""
    ranks = diagnosis.ranks[:MOST_RANKS]
    values = [leaf_values(rank.ledger_ns) for rank in ranks]
    present = [leaf for leaf in range(len(LEAVES)) if any(row[leaf] for row in values)]
    files = [base_name(item.path) for item in diagnosis.inputs]
    data = {
        "labels": [shorten(rank.label, 64) for rank in ranks],
        "files": [files[rank.input] if 0 <= rank.input < len(files) else "" for rank in ranks],
        "roles": [role.label for role in roles.roles],
        "role": roles.role_of[: len(ranks)],
        "places": {key: of[: len(ranks)] for key, of in roles.places.of.items()},
        "steps": roles.steps,
        "step": roles.steps_ns[: len(ranks)],
        "window": [rank.window.duration_ns for rank in ranks],
        "leaves": [
            {
                "label": LEAVES[leaf].label,
                "ns": [row[leaf] for row in values],
                "usual": [round(role.shares[leaf].median, 6) for role in roles.roles],
            }
            for leaf in present
        ],
        "far": {
            each.rank: figures.signed_share(each.lead.by) for each in roles.outliers if each.rank < len(ranks)
        },
    }
    return island(data)
