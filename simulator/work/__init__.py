"""What captured ranks say of their passes and messages: what the job is modelled from."""
