"""Replay of the operations that all ranks of a job recorded, whatever named them."""
