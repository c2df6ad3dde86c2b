"""Tables in full: collectives by size, copies, all-to-all, GPU metrics."""
