"""What every analysis counts with: sets of intervals, keys of rows."""
