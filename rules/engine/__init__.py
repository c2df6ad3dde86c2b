"""The rules engine: what rules read, what they return, how verdicts become results."""
