"""The one exception of the public functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class PerfdocError(ValueError):
    """A mistake that its reader can correct, in one line: what is wrong, and what to do.

    What the command prints after `perfdoc:`. `__cause__` is the error that was found.
    """


@contextmanager
def one_line() -> Iterator[None]:
    """What is wrong with an input, a lost worker and a disk that takes nothing: as PerfdocError."""
    from perfdoc.results.names import PROSE_LIMIT, prose

    try:
        yield
    except PerfdocError:
        raise
    except ValueError as error:
        raise PerfdocError(prose(str(error), PROSE_LIMIT)) from error
    except OSError as error:
        said = f"{error.filename}: {error.strerror}." if error.filename else str(error)
        raise PerfdocError(prose(said, PROSE_LIMIT)) from error
