"""Runs a command where it has so much memory and no more, page cache included, as in a container. Needs root.

    python benchmarks/limited_memory.py 2000MB perfdoc analyze trace.sqlite

Prints time, CPU and the largest resident size; the kernel ends what needs more. What stands in files is read
again where it does not fit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from process import timed

_GROUPS = Path("/sys/fs/cgroup")
_LIMITS = {"memory/{}/memory.limit_in_bytes": "memory/{}", "{}/memory.max": "{}"}
"""By the file of the limit, the folder of a group: versions 1 and 2 of control groups."""


@contextmanager
def limited(limit_bytes: int) -> Iterator[list[str]]:
    """What to write before a command. Raises OSError where no such group can be made."""
    name = f"perfdoc-{os.getpid()}"
    (limit, folder), *_ = [
        (_GROUPS / file.format(name), _GROUPS / of.format(name))
        for file, of in _LIMITS.items()
        if (_GROUPS / "memory").is_dir() == file.startswith("memory/")
    ]
    folder.mkdir()
    try:
        limit.write_text(str(limit_bytes))
        yield ["/bin/sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    finally:
        folder.rmdir()


def main() -> None:
    size, *command = sys.argv[1:]
    try:
        with limited(int(size.removesuffix("MB")) * 10**6) as inside:
            print(timed([*inside, *command]))
    except OSError as error:
        sys.exit(f"no control group of so much memory: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"ended with {error.returncode}: {str(error.stderr).strip()[-200:]}")


if __name__ == "__main__":
    main()
