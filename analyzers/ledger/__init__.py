"""Where every nanosecond of a window goes, and the MFU that is left of it."""
