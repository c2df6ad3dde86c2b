"""Who comes late to collectives, and who waits."""
