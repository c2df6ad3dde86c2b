"""What `perfdoc watch` says of a job that trains, from its rows of steps or its log."""
