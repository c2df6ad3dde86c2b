"""Which collectives of several ranks are one."""
