"""A measured step rebuilt as tasks that wait for one another, so that it can be run again with a change."""
