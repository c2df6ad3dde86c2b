"""Summaries: what one capture measured, as a small file that takes the trace's place."""
