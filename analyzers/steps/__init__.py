"""How long the steps of a job take."""
