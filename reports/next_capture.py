"""What to capture or to give where nothing can be advised on what there is: one sentence, never silence."""

from __future__ import annotations

from perfdoc.reports.ranking import ranking
from perfdoc.results import Diagnosis

_LATER = {
    True: "nsys profile --capture-range=cudaProfilerApi …, with torch.cuda.profiler.start() before step 10",
    False: "torch.profiler.schedule(wait=10, warmup=2, active=4), and profiler.step() after each step",
}
"""By whether the capture is Nsight's."""


def next_capture(diagnosis: Diagnosis) -> str:
    """Empty where something is advised, or where no trace was given."""
    if not diagnosis.ranks or any(row.leads and row.row.kind != "capture" for row in ranking(diagnosis)):
        return ""
    windows = [rank.window for rank in diagnosis.ranks]
    if any(w.runs_once and w.start_up is not None and not w.start_up.left_out for w in windows):
        return f"Nothing to tune in start-up. Capture steps that come later: {_later(diagnosis)}."
    if any(w.runs_once for w in windows):
        return f"One pause does not stand for the job. Capture several steps: {_later(diagnosis)}."
    if any(rank.host.graphs.whole_graphs for rank in diagnosis.ranks):
        return (
            "Nothing can be advised on what CUDA graphs hide. Capture again with "
            "nsys profile --cuda-graph-trace=node …: it shows their kernels."
        )
    if missing := next((r.events for r in diagnosis.ranks if r.events.work_missing), None):
        return f"Nothing can be advised: {missing.work_missing}. Capture all events, unfiltered."
    wanted = diagnosis.mfu.remedy if diagnosis.mfu.value is None else ""
    return f"No loss that a known change removes was found. {wanted}".strip()


def _later(diagnosis: Diagnosis) -> str:
    return _LATER[all(source.format.startswith("nsys") for source in diagnosis.inputs)]
