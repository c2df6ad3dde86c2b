"""Memory snapshots of PyTorch, read in bounded memory into columns."""
