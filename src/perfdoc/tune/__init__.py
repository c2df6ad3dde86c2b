"""`perfdoc tune`: the configuration to run instead, searched in the job's model."""
