"""Predicted against measured: a rule's advice is followed, and what it gained is put on record."""
