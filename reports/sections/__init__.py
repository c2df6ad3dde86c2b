"""Sections of a report, one file each: what an analysis found, as sentences and tables for any renderer."""
