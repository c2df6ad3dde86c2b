"""Facts about a case that several rules share."""
