"""Renderings of a diagnosis: an HTML page, text for the terminal, Markdown for a pull request. They read
the diagnosis and nothing else; diagnosis.json itself is perfdoc.results.to_json."""
