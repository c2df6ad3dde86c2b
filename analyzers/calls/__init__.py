"""The collectives of one rank, as rows that ranks are compared by."""
