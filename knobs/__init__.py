"""The knob catalogue: what can be set, how each framework spells it, and what excludes what."""
