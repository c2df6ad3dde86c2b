"""`python -m perfdoc` and the `perfdoc` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; an interrupt ends with 130."""
    try:
        from perfdoc.cli import app

        app()
    except KeyboardInterrupt:
        sys.stderr.write("perfdoc: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
