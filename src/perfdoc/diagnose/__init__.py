"""From many files to one Diagnosis: what was asked, measuring, and everything that is published of it."""
