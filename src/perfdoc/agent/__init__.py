"""What an agent may ask of perfdoc over the Model Context Protocol. docs/mcp.md describes it."""
