"""Timelines with a known answer, and the writers that turn them into captures."""
