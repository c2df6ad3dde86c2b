"""Two measurements of one job beside each other: what changed, by how much, and what may be noise."""
