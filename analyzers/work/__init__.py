"""FLOPs and bytes of every kernel, and where each figure comes from; docs/kernels.md has the formulas."""
