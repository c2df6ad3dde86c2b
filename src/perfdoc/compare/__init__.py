"""Measurements and runs held against each other: what gate, diff, verify and a baseline share.

Reading: `runs` (a run directory, a log) into `figures`, `side` (captures, a diagnosis), `stored` (JSON),
`baseline_files`. Comparability: `facts`. Is B slower than A: `slower`. Limits: `floors`.
"""
