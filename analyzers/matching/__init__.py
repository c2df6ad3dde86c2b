"""Which collectives of several ranks are one: each rank's calls in columns, and the calls of all matched."""
