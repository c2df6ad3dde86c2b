"""What a kernel is, by its name."""
