"""`perfdoc analyze --baseline --target`: the headline figures held against an earlier measurement."""
