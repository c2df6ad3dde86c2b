"""What the tuning guides advise, entry by entry, and what became of each."""
