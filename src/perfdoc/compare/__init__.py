"""Measurements and runs held against each other: what gate, diff, verify and a baseline share."""
