"""A model's shape from the files that people have of it."""
