"""What other trainers call: steps, ranges, windows and callbacks. `published.py` lists the names."""
