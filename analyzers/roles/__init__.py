"""Which ranks do the same work, and which differ from those."""
