"""Start one rank, under nsys if it is a profiled one: what torchrun runs on every rank.

`python -m perfdoc.profiling.nsys_rank RANKS N WORD... PROGRAM...`: RANKS is `all` or `0,3`; the N words
after it are the nsys line, the rest the program. The process becomes the program, so that signals and exit
codes of torchrun reach it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence


def line_of_rank(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The line that this rank runs.

    Raises ValueError where the arguments or the RANK that torchrun sets are not as described above.
    """
    if len(arguments) < 3:
        raise ValueError("nsys_rank needs RANKS, a number of words, and a program")
    chosen, count, *words = arguments
    rank = int(environment.get("RANK", "-1"))
    if rank < 0:
        raise ValueError("RANK is not set: nsys_rank is to be started by torchrun")
    under, program = words[: int(count)], words[int(count) :]
    profiled = chosen == "all" or rank in {int(text) for text in chosen.split(",") if text}
    return [*under, *program] if profiled else list(program)


def main() -> None:
    """Become the program."""
    try:
        line = line_of_rank(sys.argv[1:], os.environ)
        os.execvp(line[0], line)
    except (OSError, ValueError, IndexError) as error:
        sys.exit(f"perfdoc.profiling.nsys_rank: {error}")


if __name__ == "__main__":
    main()
