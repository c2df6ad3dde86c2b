"""Memory snapshots of PyTorch, read in bounded memory into columns."""

MAX_BYTES = 1 << 48
"""256 TiB: no device has an allocation of that size."""
SUFFIXES = (".pickle", ".pkl")


def is_snapshot_name(name: str) -> bool:
    """Whether a file of this name is taken for a memory snapshot."""
    return name.lower().endswith(SUFFIXES)
