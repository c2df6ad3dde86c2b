"""Timelines laid by hand, and the writers that turn them into captures."""
