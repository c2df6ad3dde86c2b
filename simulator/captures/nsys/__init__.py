"""Writes a timeline as Nsight Systems exports it."""
