"""The text that ships, and the grammar that wrote it."""
