"""What an agent may ask of perfdoc over the Model Context Protocol. docs/python.md describes it."""
