"""A training step simulated from a model and a layout, with faults, and its exact answer."""
