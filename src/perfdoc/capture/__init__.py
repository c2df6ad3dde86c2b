"""`perfdoc capture`: somebody else's job under a profiler, and its analysis."""
