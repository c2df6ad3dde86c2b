"""How a job is spread over its ranks, from what its captures show."""
