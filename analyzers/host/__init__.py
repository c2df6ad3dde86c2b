"""What the host did while the device had nothing to do."""
