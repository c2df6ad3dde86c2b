"""The whole annotated timeline of captures, as a file for a trace viewer."""
