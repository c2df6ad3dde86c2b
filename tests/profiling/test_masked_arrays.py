"""numpy.ma is imported by who uses it, and by no question whether something is masked."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys, threading
import numpy as np
from perfdoc.profiling.masked_arrays import import_when_used
import_when_used()
assert np.unique([2, 1, 2]).tolist() == [1, 2]
assert np.median([1.0, 4.0, 2.0]) == 2.0 and np.percentile([0.0, 10.0], 50) == 5.0
assert np.isin(np.array(["a", "b"]), np.array(["b"])).tolist() == [False, True]
assert "numpy.ma" not in sys.modules
if {others}:
    threads = [threading.Thread(target=np.unique, args=([1, 1],)) for _ in range(8)]
    for thread in threads:
        thread.start()
values = np.ma.masked_array([1, 1, 5], [False, False, True])
assert np.ma is sys.modules["numpy.ma"] and np.ma.is_masked(values)
assert np.unique(values).count() == 1
import_when_used()
assert np.ma is sys.modules["numpy.ma"]
"""


def test_it_is_imported_when_used_and_never_for_a_question() -> None:
    for others in (False, True):
        subprocess.run([sys.executable, "-c", _PROGRAM.replace("{others}", str(others))], check=True)
