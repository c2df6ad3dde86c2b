"""Every nanosecond of compute: at the roofline, or lost and why; docs/kernels.md."""
