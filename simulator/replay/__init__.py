"""A measured step rebuilt as a graph of dependent tasks, so that it can be replayed with a change."""
