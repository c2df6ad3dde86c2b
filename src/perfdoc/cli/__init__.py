"""The command line: the application, what its commands share, and a file for each of them."""
