"""The forward half: a training step laid out from a model and a layout, with faults, and its exact answer."""
