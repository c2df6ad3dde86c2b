"""The guides as code: one file a rule, found by its name."""
