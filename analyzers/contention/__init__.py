"""What resident communication does to the kernels beside it."""
