"""Clocks of several captures, brought to one through the ends of collectives."""
