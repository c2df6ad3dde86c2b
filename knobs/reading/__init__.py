"""Reading what a user's file sets, in whatever way it is written."""
