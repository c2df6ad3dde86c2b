"""What a simulated capture is written with: the tables of an export, the groups and clocks of its ranks."""
