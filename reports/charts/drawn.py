"""Pieces that pictures made in Python share. Every text goes through the escaping of Markup.format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from perfdoc.reports.charts.looks import Look


def figure(caption: str, *parts: Markup) -> Markup:
    """A picture with its caption above it."""
    head = Markup("<figcaption>{}</figcaption>").format(caption)
    return Markup('<figure class="picture">{}{}</figure>').format(head, Markup("").join(parts))


def patterns(kind: str, looks: Iterable[Look]) -> Markup:
    """Fills of these codes, for `fill` to name."""
    found = Markup("")
    for look in looks:
        hatch = Markup('<path class="hatch" d="{}"/>').format(look.hatch) if look.hatch else ""
        found += Markup(
            '<pattern id="{}" patternUnits="userSpaceOnUse" width="8" height="8">'
            '<rect width="8" height="8" class="u-{}"/>{}</pattern>'
        ).format(look.id(kind), look.colour, hatch)
    return Markup('<svg class="defs" aria-hidden="true" focusable="false"><defs>{}</defs></svg>').format(
        found
    )


def legend(kind: str, title: str, looks: Sequence[Look]) -> Markup:
    """Swatches with letters and words."""
    items = Markup("").join(
        Markup(
            '<li><svg class="swatch" width="28" height="18" aria-hidden="true">'
            '<rect fill="url(#{})" width="28" height="18" rx="3"/>'
            '<text class="letter" x="14" y="13">{}</text></svg>{}</li>'
        ).format(look.id(kind), look.letter, look.label)
        for look in looks
    )
    return Markup('<ul class="legend" aria-label="Legend: {}">{}</ul>').format(title, items)


def short(number: float) -> str:
    """A coordinate without what no screen shows."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
