"""Ledgers and times of steps."""
