"""What configurations say of a model's shape."""
