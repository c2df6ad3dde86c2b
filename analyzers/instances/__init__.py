"""Single moments that stand for a finding: where in the trace the worst one of its kind lies, and what ran
around it."""
