"""Bubble, transfer, handover and late peers of a pipeline."""
