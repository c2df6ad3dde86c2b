"""Configurations drawn at random over the whole catalogue."""

from __future__ import annotations

import random

from perfdoc.knobs.check import violations
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import DIALECTS, Knob, Value
from perfdoc.knobs.load import catalogue

SIZES = (1, 2, 3, 4, 8, 16, 100, 1_000, 40_000_000)
WORDS = ("a", "p2p", "DP", "expandable_segments:True")
DENSITIES = (0.0, 0.05, 0.2, 0.5, 0.9)
"""Shares of the catalogue that are set."""


def drawn(rng: random.Random) -> Configuration:
    """One configuration: some knobs set, some set to what cannot be told, in some dialect, whole or not.

    About half of them break no rule of the catalogue: what breaks one is taken out again.
    """
    density = rng.choice(DENSITIES)
    values: dict[str, Value] = {}
    unknown = set()
    for name, knob in catalogue().items():
        if knob.type in ("any", "command") or rng.random() >= density:
            continue
        if rng.random() < 0.05:
            unknown.add(name)
        else:
            values[name] = value(rng, knob)
    dialect = rng.choice([None, *DIALECTS])
    found = Configuration(
        values=values, unknown=frozenset(unknown), dialect=dialect, complete=rng.random() < 0.5
    )
    return mended(found) if rng.random() < 0.5 else found


def value(rng: random.Random, knob: Knob) -> Value:
    """A value that the knob's type and range admit."""
    if knob.nullable and rng.random() < 0.2:
        return None
    if knob.type == "bool":
        return rng.random() < 0.5
    if knob.type in ("list", "int_list"):
        return tuple(one(rng, knob) for _ in range(rng.randrange(3)))
    return one(rng, knob)


def one(rng: random.Random, knob: Knob) -> bool | int | float | str:
    """A single value, or an element of a list."""
    if knob.choices:
        return rng.choice(knob.choices)
    if knob.type in ("int", "int_list", "float"):
        low = 0 if knob.min is None else knob.min
        high = SIZES[-1] if knob.max is None else knob.max
        fits = [s for s in (0, *SIZES) if low <= s <= high]
        number = rng.choice(fits or [int(low)])
        return float(number) if knob.type == "float" else number
    if knob.type == "dtype":
        return rng.choice(("fp32", "bf16", "fp16", "fp8"))
    return rng.choice(WORDS)


def mended(configuration: Configuration) -> Configuration:
    """Without the settings that break rules, as far as some rounds of taking them out go."""
    values = dict(configuration.values)
    for _ in range(6):
        found = Configuration(
            values=values,
            unknown=configuration.unknown,
            dialect=configuration.dialect,
            complete=configuration.complete,
        )
        broken = violations(found)
        if not broken:
            return found
        for violation in broken:
            values.pop(violation.knob, None)
            for name in sorted(violation.read & values.keys())[:1]:
                values.pop(name)
    return found
