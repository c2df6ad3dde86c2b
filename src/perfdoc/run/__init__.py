"""A run of the trainer with profiling on: made ready, started, and taken in at its end."""
