"""What the tests of the recipe capture: `nsight_program.py RANK WORLD`."""

from __future__ import annotations

import sys
import time

import nvtx

from perfdoc.profiling import ranges
from perfdoc.profiling.distributed import groups
from perfdoc.profiling.vocabulary import FORWARD, STEP, numbered

NAMES = ("plain", "with, comma", 'with "quotes"', "two\nlines", "1e3", "+1", "null", "ünï", "a:b")
"""Names that a table of text can get wrong."""


def main(rank: int, world: int) -> None:
    ranges.enable(record_function=False)
    groups.emit_marks(rank=rank, world_size=world, device="cpu")
    for step in range(2):
        with ranges.range(numbered(STEP, step)), ranges.range(FORWARD):
            for name in NAMES:
                with nvtx.annotate(name):
                    time.sleep(0.0005)
            with nvtx.annotate("plain", domain="other"):
                time.sleep(0.0005)
            nvtx.end_range(nvtx.start_range("plain"))
    ranges.disable()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
