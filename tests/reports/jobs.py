"""Six jobs whose answer is planted, each analysed once in a session: what reports are tried on."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import msgspec

from perfdoc.diagnose.asked import parse_request
from perfdoc.diagnose.diagnosis import diagnosis_of
from perfdoc.diagnose.measuring import measure_all
from perfdoc.results import Diagnosis, from_json, to_json
from perfdoc.simulator.forward.faults import parse_faults
from perfdoc.simulator.forward.job import simulate
from perfdoc.simulator.forward.layout import parse_layout
from perfdoc.simulator.forward.writing import write_job
from perfdoc.traces.known_models import known_models
from tests.captures.memory_snapshot import write_fragmented

_FOLDERS = tempfile.TemporaryDirectory(prefix="perfdoc-jobs-")
_PLANTED = {
    # The demonstration: data, garbage collection, and rank 1 slow throughout.
    "data": (4, "dp=2,seq=2048,micro_batches=2", ("gc=10", "slow_data=5", "late_rank=1:1.15"), 3),
    # Four stages of which one has two layers more.
    "stages": (12, "pp=4,seq=1024,micro_batches=8", ("uneven_stages=2",), 2),
    # Communication beside norms, which it slows; nothing overlaps; memory in pieces.
    "exposed": (4, "tp=2,dp=2,seq=1024", ("norm_spin=1.6", "no_overlap=dp"), 2),
    # One rank without steps named, launched too late.
    "host": (4, "dp=1,seq=512", ("launch_starved=300",), 1),
    # More ranks than are shown one by one; the last one is late.
    "many": (1, "dp=20,seq=256", ("late_rank=19:1.3",), 2),
}
NAMES = (*_PLANTED, "nothing")


@cache
def job(name: str) -> Diagnosis:
    """One of NAMES; `nothing` has a memory snapshot alone."""
    folder = Path(_FOLDERS.name) / name
    if name == "nothing":
        job("exposed")
        (snapshot,) = (Path(_FOLDERS.name) / "exposed" / "memory").iterdir()
        return _analyse(snapshot)
    layers, layout, faults, steps = _PLANTED[name]
    shape = msgspec.structs.replace(known_models()["llama3-8b"], layers=layers)
    made = simulate(shape, parse_layout(layout), planted=parse_faults(faults), steps=steps)
    write_job(made, folder, ranks=range(made.simulation.setting.layout.world_size))
    if name == "exposed":
        write_fragmented(folder / "memory" / "rank0.pickle", device_bytes=made.gpu.memory_bytes)
    return _analyse(folder, folder / "job.yaml")


def _analyse(path: Path, config: Path | None = None) -> Diagnosis:
    """In its serial form and back."""
    measured = measure_all(parse_request([str(path)], config=config, jobs=1))
    return from_json(to_json(diagnosis_of(measured, config)[0]))
