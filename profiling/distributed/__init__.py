"""What a run does through torch.distributed: its process groups and their collectives."""
