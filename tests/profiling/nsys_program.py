"""What the Nsight tests capture: the vocabulary's kinds of range, one step long."""

from __future__ import annotations

import gc
import sys
import threading
import time

from perfdoc.profiling import garbage, ranges
from perfdoc.profiling.distributed import groups
from perfdoc.profiling.distributed.collective_name import CollectiveName, format_collective
from perfdoc.profiling.vocabulary import COLLECTIVE_RUN, DATA, STEP, numbered


def main() -> None:
    with ranges.range("perfdoc.step 99"):  # Off: not in the capture.
        pass
    garbage.install()
    gc.disable()  # Only the collections below.
    sys.stderr.write(f"ranges: {ranges.enable(record_function=False)}\n")
    groups.emit_marks(rank=0, world_size=1, device="cpu")
    name = CollectiveName(
        phase=COLLECTIVE_RUN, operation="all_reduce", group="TP", group_name="1", bytes=64, sequence=0
    )
    for step in (0, 1, 2):
        with ranges.range(numbered(STEP, step)):
            with ranges.range(DATA):
                time.sleep(0.002)
            handle = ranges.start(format_collective(name))
            gc.collect()
            worker = threading.Thread(target=ranges.end, args=(handle,))
            worker.start()
            worker.join()
    ranges.disable()


if __name__ == "__main__":
    main()
