"""The names of the ranges that perfdoc's own trainer emits and its readers look for."""

from __future__ import annotations

STEP = "perfdoc.step"
"""One training step; followed by a space and its number."""
DATA = "perfdoc.data"
"""Waiting for the next batch."""
GC = "perfdoc.gc"
"""Python's garbage collection."""
