"""Settings that differ, under the ids of perfdoc's catalogue, whatever either side's framework calls them."""

from __future__ import annotations

from perfdoc.diff.load import Loaded
from perfdoc.diff.result import Configuration, Setting
from perfdoc.knobs.configuration import Configuration as Settings
from perfdoc.knobs.configuration import Undecided, View
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import catalogue

_NAMED = 5
"""Settings that cannot be told, by name."""


def settings_rows(before: Loaded, after: Loaded) -> Configuration:
    """Every setting that one side makes and the other does not make alike.

    One that is not set has its default, where it is known whose defaults hold.
    """
    one, two = before.configuration, after.configuration
    if one is None or two is None:
        which = "neither side's" if one is two else "the first side's" if one is None else "the second side's"
        return Configuration(
            state="not_measured",
            reason=f"{which} settings are known. Give --config-before and --config-after, or run directories",
            settings=[],
            same=0,
        )
    rows, same = [], 0
    for knob in sorted({*one.values, *two.values}):
        a, b = _value(one, knob), _value(two, knob)
        if knob in one.unknown or knob in two.unknown:
            continue
        if a == b:
            same += 1
            continue
        rows.append(
            Setting(
                knob=knob,
                title=catalogue()[knob].title,
                before=a[0] if a else None,
                after=b[0] if b else None,
                before_set=knob in one.values,
                after_set=knob in two.values,
            )
        )
    unclear = sorted(one.unknown | two.unknown)
    more = f" and {len(unclear) - _NAMED:,} more" if len(unclear) > _NAMED else ""
    return Configuration(
        state="measured",
        reason=f"not to be told: {', '.join(unclear[:_NAMED])}{more}" if unclear else "",
        settings=rows,
        same=same,
    )


def _value(of: Settings, knob: str) -> tuple[Value] | None:
    """What holds, in a tuple of its own since null is a value; None where that is not known."""
    try:
        return (View(of)(knob),)
    except Undecided:
        return None
