"""Measuring: pure functions from a Trace to a frozen result, one file per analysis."""
