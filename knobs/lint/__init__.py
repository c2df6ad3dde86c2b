"""Finding what is wrong with a configuration, without a trace."""
