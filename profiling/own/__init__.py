"""What other trainers call: steps, ranges, windows and callbacks."""
