"""One device of a capture: its activity, window, launches and gaps, before any analysis."""
