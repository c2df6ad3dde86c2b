"""Tables in full: ranges of the user's own, collectives by size, copies, all-to-all, GPU metrics."""
