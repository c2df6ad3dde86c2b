"""perfdoc in Python: `perfdoc.analyze`, `perfdoc.diff` and what they return; see docs/python.md."""
