"""What files of the package are made into, kept in `__pycache__` as Python keeps its modules compiled.

Nothing of a capture is kept. Where nothing may be written, all is made again each time.
"""

import importlib.util
import marshal
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfdoc.version import __version__


def kept(file: Path, make: Callable[[bytes], Any], beside: Path | None = None) -> Any:
    """What `make` makes of a file's bytes: plain data. Anew when it, the module of `make` or perfdoc changes.

    beside: the file of ours beside which it is kept, for one that is not ours, perhaps of millions of bytes:
    it is taken to be as it was while size and time of change are the same, as Python takes its sources to be.
    Raises what `make` raises.
    """
    content, module = None if beside else file.read_bytes(), b""
    with suppress(OSError):
        module = Path(make.__code__.co_filename).read_bytes()
    seen = file.stat()
    state = content if content is not None else f"{file} {seen.st_size} {seen.st_mtime_ns}".encode()
    mark = importlib.util.source_hash(state + module + __version__.encode())
    place = Path(importlib.util.cache_from_source(f"{beside or file}.py"))
    if (made := read(place, mark)) is None:
        made = make(file.read_bytes() if content is None else content)
        write(place, mark, made)
    return made


def read(place: Path, mark: Any) -> Any:
    """What was kept there under this mark; None where nothing is."""
    with suppress(OSError, EOFError, ValueError, TypeError):
        kept = memoryview(place.read_bytes())  # of megabytes: no slice copies them
        if importlib.util.source_hash(kept[8:]) == kept[:8]:
            found, made = marshal.loads(kept[8:])
            return made if found == mark else None
    return None


def write(place: Path, mark: Any, made: Any) -> None:
    """Keep plain data there, where something may be kept at all."""
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            part = place.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            try:
                data = marshal.dumps((mark, made))
                part.write_bytes(importlib.util.source_hash(data) + data)  # a damaged one could end Python
                part.replace(place)
            finally:
                part.unlink(missing_ok=True)


def table(file: Path) -> Any:
    """A YAML file of ours as plain data."""
    return kept(file, loaded)


def loaded(content: bytes) -> Any:
    """The same, of what the file holds."""
    import yaml

    return yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
