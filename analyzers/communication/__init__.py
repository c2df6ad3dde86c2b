"""Whose communication it is: dimensions, groups, bytes, bandwidth, blocking."""
