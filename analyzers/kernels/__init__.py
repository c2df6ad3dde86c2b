"""Time by kernel, class and part of the model; patterns that a fusion would remove."""
