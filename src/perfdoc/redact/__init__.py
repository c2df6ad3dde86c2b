"""A copy of a capture that may be shared: what perfdoc reads, without what is private."""
