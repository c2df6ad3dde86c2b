"""FLOPs and bytes of every kernel, and where each figure comes from; docs/kernel_work.md has the formulas."""
