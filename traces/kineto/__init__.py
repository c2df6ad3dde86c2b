"""PyTorch profiler traces (Kineto's Chrome JSON), read into a Trace."""
