"""The reference trainer: a real megatron-core training loop for CPUs (gloo) and CUDA GPUs (NCCL)."""
