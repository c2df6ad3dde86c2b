"""Where every nanosecond of a window goes, and of each of its steps; the MFU that is left of it."""
