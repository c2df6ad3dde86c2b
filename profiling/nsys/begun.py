"""What nsys starts in place of a program that knows nothing of perfdoc.

`python -m perfdoc.profiling.nsys.begun PROGRAM...` notes that the rank has begun, runs the program with the
standard output that nsys took, and notes how it ended: nsys may end before it, with a code of its own.
"""

import os
import signal
import subprocess
import sys

from perfdoc.profiling.launch_folder import LaunchFolder
from perfdoc.profiling.nsys.rank import RANK_VARIABLE, STDOUT_VARIABLE


def main() -> int:
    """Run the program; its exit code, 128 and the signal where one ended it."""
    rank = os.environ.pop(RANK_VARIABLE, "") or os.environ.get("RANK", "")
    launch = LaunchFolder.of() if rank.isdecimal() else None
    if launch is not None:
        launch.register(int(rank))
    # A stop is sent to the whole group: the program ends by it, and we after the program.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    kept = os.environ.pop(STDOUT_VARIABLE, "")
    try:
        code = subprocess.call(sys.argv[1:], stdout=int(kept) if kept.isdecimal() else None)
    except OSError as error:
        sys.stderr.write(f"perfdoc: {sys.argv[1]}: {error.strerror}\n")
        code = 127
    code = code if code >= 0 else 128 - code
    if launch is not None:
        launch.note_code(int(rank), code)
    return code


if __name__ == "__main__":
    sys.exit(main())
