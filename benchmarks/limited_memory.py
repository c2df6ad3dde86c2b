"""Runs a command where it has so much memory and no more, page cache included, as in a container. Needs root.

    python benchmarks/limited_memory.py --mb 2000 perfdoc analyze trace.sqlite

Prints time, CPU and the largest resident size; the kernel ends what needs more. What stands in files is read
again where it does not fit.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from process import timed

_GROUPS = Path("/sys/fs/cgroup")
_LIMITS = {"memory/{}/memory.limit_in_bytes": "memory/{}", "{}/memory.max": "{}"}
"""By the file of the limit, the folder of a group: versions 1 and 2 of control groups."""
_SWAP = {"memory.memsw.limit_in_bytes": True, "memory.swap.max": False}
"""By the file, whether it counts memory too."""


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
        for file, swapped in _SWAP.items():  # where swap counts at all
            if (folder / file).exists():
                (folder / file).write_text(str(limit_bytes if swapped else 0))
        yield ["/bin/sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    finally:
        for _ in range(50):  # until the last process in it is gone
            with suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, required=True, help="10^6 bytes")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    with ExitStack() as entered:
        try:
            inside = entered.enter_context(limited(options.mb * 10**6))
        except OSError as error:
            sys.exit(f"no control group of so much memory: {error}")
        try:
            print(timed([*inside, *options.command]))
        except subprocess.CalledProcessError as error:
            if error.returncode == -signal.SIGKILL:
                sys.exit(f"needed more than {options.mb} MB")
            sys.exit(f"ended with {error.returncode}: {str(error.stderr).strip()[-200:]}")


if __name__ == "__main__":
    main()
