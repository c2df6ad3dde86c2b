"""The sentences on what there is to gain, and what to capture where nothing can be advised."""

from __future__ import annotations

import re
from statistics import fmean

from perfdoc.reports.advice import MINUS, excluding, rough
from perfdoc.reports.over_ranks import apart
from perfdoc.reports.ranking import Ranked, ranking
from perfdoc.results import Combined, Diagnosis
from perfdoc.results.figures import plural, share
from perfdoc.results.host import allocates
from perfdoc.results.losses import PIPELINE, WORTH_A_VERDICT_FRAC, largest_loss, outside_of
from perfdoc.results.names import listed, shorten
from perfdoc.results.quality import HANG, PAGES, TAKEN
from perfdoc.results.ranking import AS_SLOW
from perfdoc.results.ranks import computing_longer, in_steps, longest_step_ns
from perfdoc.results.waits import may_be_data

_NAMED = 3
"""Changes that the outlook names."""
_ASIDE = r" \(|: "
"""Behind it a change's name says how it is made."""


def opening_words(diagnosis: Diagnosis) -> tuple[str, str]:
    """(the verdict, what shows it and what there is to gain by several changes)."""
    together = gain_together(diagnosis) or nothing_gained(diagnosis)
    return diagnosis.verdict, " ".join(words for words in (diagnosis.why, together) if words)


def next_thing(diagnosis: Diagnosis) -> tuple[Ranked | None, str]:
    """(the thing to do first, "") or (None, what to do or to capture first, in words): never of another cause
    than the verdict. ("", None) where nothing is to be done."""
    noted = {item.code: item.remedy for item in diagnosis.quality}
    if first := noted.get(HANG) or noted.get(TAKEN):
        return None, first
    rows = [row for row in ranking(diagnosis) if row.leads]
    if rows and rows[0].row.blamed:
        return rows[0], ""
    if PAGES in noted and largest_loss([r.ledger_ns for r in diagnosis.ranks])[1] < WORTH_A_VERDICT_FRAC:
        return None, noted[PAGES]
    if said := next_capture(diagnosis) or _against_largest_loss(diagnosis):
        return None, said
    return (rows[0], "") if rows else (None, "")


def capture_first(ranked: Ranked, diagnosis: Diagnosis) -> tuple[str, str]:
    """(what to do before it, in a sentence, what it is done for then): where the capture itself may have made
    the host slow, and where ranks that may be late were not captured; else empty."""
    found = (c.removeprefix(AS_SLOW) for c in ranked.row.conditions if c.startswith(AS_SLOW))
    if without := next(found, ""):
        return f"capture again without {without}: recording it slows the host itself.", "if still so"
    ranks, size = diagnosis.ranks, diagnosis.job.world_size if diagnosis.job else None
    about = largest_loss([r.ledger_ns for r in ranks])[0] if ranked.row.blamed == "loss" else ""
    if not ranked.sized or not about.startswith("exposed_comm") or (size or 0) <= len(ranks):
        return "", ""
    how = f"all {size:,} ranks (one file a rank; `perfdoc analyze DIR`)"
    of_stages = ranked.rule is not None and ranked.rule.ends == "pipeline.bubble"
    then = "if no rank is late" if of_stages else "if it is transfer"
    return f"capture {how}: they tell waiting from transfer and name the late rank.", then


def gain_together(diagnosis: Diagnosis) -> str:
    """What several changes gain that were simulated together; empty where nothing is to be said of it."""
    both = _together(diagnosis)
    if both is None or both.gain is None:
        return ""
    known = {p.key: p.change for p in diagnosis.analyses.gains.predictions}
    best = _in_order(diagnosis, both)
    names = [shorten(re.split(_ASIDE, known.get(key, key))[0], 96) for key in best]
    if (both.gain.mid_ms or 0.0) <= 0:
        return f"{len(names)} changes each have a predicted gain; simulated together they gain nothing."
    step_ns = replayed_ns(diagnosis)
    said = f"{len(names)} changes together ({listed(names, _NAMED)}): "
    of = "step" if in_steps(diagnosis.ranks) else "window"
    per = "per step" if of == "step" else "in this window"
    low, mid, high = (rough(ms or 0.0) for ms in (both.gain.low_ms, both.gain.mid_ms, both.gain.high_ms))
    part = ""
    if step_ns:
        base = _base(step_ns, of, diagnosis)
        base += "" if base == f"the {of}" else f" ({rough(step_ns / 1e6)})"
        part = f", {share((both.gain.mid_ms or 0.0) * 1e6 / step_ns)} of {base}"
    said += f"{MINUS}{mid} {per} ({low} to {high}){part}, predicted{_provided(diagnosis, both)}"
    apart = [codes for pair, codes in excluding(diagnosis.rules).items() if pair <= set(both.accepted)]
    if apart:
        pairs = ", ".join(f"{shorten(a, 48)} with {shorten(b, 48)}" for a, b in apart[:_NAMED])
        said += f"; less in practice: some of their settings exclude each other ({pairs})"
    return said + "."


def together_in_short(diagnosis: Diagnosis, shown: int) -> str:
    """The same by the numbers of the list, of which so many rows are shown, and who searches on, where the
    job has a model."""
    both = _together(diagnosis)
    modelled = diagnosis.analyses.job_model.state == "measured"
    if both is None or both.gain is None or (both.gain.mid_ms or 0.0) <= 0:
        return "perfdoc tune TRACES searches sets of settings." if modelled else ""
    rows = [row.row.key for row in ranking(diagnosis) if row.leads]
    *others, last = sorted(rows.index(key) + 1 if key in rows else shown + 1 for key in both.accepted)
    named = f"{', '.join(map(str, others))} and {last}" if last <= shown else f"{len(both.accepted)} changes"
    step_ns = replayed_ns(diagnosis)
    part = f", {share((both.gain.mid_ms or 0.0) * 1e6 / step_ns)}" if step_ns else ""
    gain = f"{rough(both.gain.mid_ms or 0.0)}{part}, predicted{_provided(diagnosis, both)}"
    search = "; search: perfdoc tune TRACES" if modelled else ""
    return f"{named} together: {gain}{search}."


def replayed_ns(diagnosis: Diagnosis) -> float:
    """The step of which gains of several changes are shares; 0 where none was replayed."""
    return max((p.step_ns for p in diagnosis.analyses.gains.predictions if p.step_ns), default=0)


def _together(diagnosis: Diagnosis) -> Combined | None:
    """Several changes that gain another amount than the first row alone; None where there are none."""
    both, gains = diagnosis.combined, diagnosis.analyses.gains
    if both is None or both.gain is None or gains.state != "measured" or len(both.accepted) < 2:
        return None
    alone = next((r.row.gain for r in ranking(diagnosis) if r.sized), None)
    same = alone is not None and rough(alone.mid_ms or 0.0) == rough(both.gain.mid_ms or 0.0)
    return None if same else both


def _in_order(diagnosis: Diagnosis, both: Combined) -> list[str]:
    place = {row.row.key: at for at, row in enumerate(ranking(diagnosis))}
    return sorted(both.accepted, key=lambda key: place.get(key, len(place)))


def _provided(diagnosis: Diagnosis, both: Combined) -> str:
    open_ = any(r.row.conditions for r in ranking(diagnosis) if r.row.key in both.accepted)
    return ", if their conditions hold" if open_ else ""


def nothing_gained(diagnosis: Diagnosis) -> str:
    """That no simulated change saves anything. Empty where something is to be done, where nothing was
    replayed, or where changes were chosen that could not be simulated together."""
    both, gains = diagnosis.combined, diagnosis.analyses.gains
    if any(row.sized for row in ranking(diagnosis)):
        return ""
    if both is None or both.accepted or both.gain is not None or gains.state != "measured":
        return ""
    if any(rank.host.graphs.whole_graphs for rank in diagnosis.ranks):
        return ""  # what they hide was not simulated
    tried = [p for p in diagnosis.analyses.gains.predictions if p.gain.is_predicted and not p.left_out]
    if not tried:
        return ""
    return f"No predicted gain: of {plural(len(tried), 'simulated change')} none saves enough to matter."


def _base(step_ns: float, of: str, diagnosis: Diagnosis) -> str:
    """What a gain is a share of: named where that is not the one at the head of the page."""
    shown = [step.duration_ns for rank in diagnosis.ranks for step in rank.window.step_list]
    if of != "step" or not shown or not apart(fmean(shown), step_ns):
        return f"the {of}"
    free = diagnosis.analyses.step_times.unprofiled
    longest_ns = longest_step_ns(diagnosis.ranks)
    lengths = {"unprofiled": free.median_ns if free else 0, "longest rank's": longest_ns}
    which = next((name for name, ns in lengths.items() if not apart(ns, step_ns)), "replayed")
    return f"the {which} step"


def base_words(diagnosis: Diagnosis) -> str:
    """What all shares of the list are of, with its length: `the 97.2 ms step`; empty where no row has one."""
    row = next((r.row for r in ranking(diagnosis) if r.sized and r.row.gain_frac), None)
    if row is None or row.gain is None:
        return ""
    base_ms = (row.gain.size_ms or 0.0) / (row.gain_frac or 1.0)
    return f"{_base(base_ms * 1e6, row.gain_per, diagnosis)}, {rough(base_ms)}"


_AGAINST = {
    "idle.host": "Capture stacks to see what the host does: `with_stack=True`, nsys `--python-sampling=true`",
    "idle.gc": "Call `gc.freeze()` after start-up, and `gc.collect()` between steps",
    "idle.data": "Load the next batch ahead of the step: `DataLoader(num_workers=4, prefetch_factor=4)`",
    "idle.dependency": "Look at the event waits on the timeline",
    "idle.launch_latency": "Launch fewer, larger kernels: fuse them, or replay graphs",
    "exposed_memcpy": "Copy ahead of use, from pinned memory with `non_blocking=True`",
    "exposed_comm": "Capture all ranks together: they tell waiting from transfer",
    "maybe all": "See on the timeline who joins last; capture all ranks, if some are missing",
    "all captured": "See on the timeline what could run beside the collectives, and who joins last",
    "may be data": "Capture more steps (twice as many): they tell a slow rank from uneven data",
    "on host": "See what Python does: `py-spy record --pid PID` while it trains, or capture with stacks",
}
"""What to do or to capture next where no row of the list is about the largest loss."""


def _against_largest_loss(diagnosis: Diagnosis) -> str:
    """Empty where nothing much is lost, or its place is not known."""
    if any(rank.events.work_missing or rank.window.runs_once for rank in diagnosis.ranks):
        return ""
    loss, frac = largest_loss([rank.ledger_ns for rank in diagnosis.ranks])
    if frac < WORTH_A_VERDICT_FRAC:
        return ""
    if loss == "idle.host" and all(rank.gpu.name == "CPU" for rank in diagnosis.ranks):
        loss = "on host"
    idle_ns = sum(rank.ledger_ns.idle.host for rank in diagnosis.ranks)
    if loss == "idle.host" and allocates([rank.host for rank in diagnosis.ranks], idle_ns)[1]:
        return f"Capture steps that come later; {_later(diagnosis)}."
    if loss == PIPELINE and diagnosis.analyses.pipeline.state != "measured":
        names = " and ".join(shorten(label, 48) for label in computing_longer(diagnosis.ranks)[1])
        first = f"Compare {names} with the other stages: layers, loss, the GPU. " if names else ""
        return f"{first}Its layout tells the bubble from waits: `--set pp=N vpp=N micro_batches=N`."
    if loss.startswith("exposed_comm"):
        size = None if diagnosis.job is None else diagnosis.job.world_size
        some = (size or 0) > len(diagnosis.ranks) or (size is None and len(diagnosis.ranks) == 1)
        late = diagnosis.analyses.skew.latest
        told = "may be data" if late is not None and may_be_data(late) else "all captured"
        loss = "exposed_comm" if some else "maybe all" if size is None else told
    in_graphs = ((rank.host.graphs.graph_ns, rank.host.graphs.kernel_ns) for rank in diagnosis.ranks)
    if loss == "idle.launch_latency" and any(2 * (ns or 0) > (of or 0) for ns, of in in_graphs):
        return "Launch fewer, larger kernels: fuse them; graphs launch many of them already."
    idle = next((rule for rule in diagnosis.rules if rule.code == "PD901" and rule.remedy), None)
    if loss == "idle.unexplained":
        return "" if idle is None else idle.remedy
    if loss == "idle.host" and idle is not None and idle.action:  # a process's GPUs that work in turn
        return idle.remedy
    return f"{_AGAINST[loss]}."


_TIME_BESIDE = "Analyse a trace of the job beside it: it tells what less memory would cost in time."
_LATER_NSYS = (
    "call `torch.cuda.profiler.start()` at step 10 and `.stop()` at step 15, an NVTX range around each step, "
    "then `perfdoc analyze later.nsys-rep`. Run: `nsys profile -o later {} train.py`"
)
_OF_ONE = "-t cuda,nvtx -c cudaProfilerApi python"
_OF_ALL = "-c cudaProfilerApi torchrun --nproc-per-node {}"
"""For a capture of all ranks: what nsys records by default needs no option, and the command one line."""
_LATER_TORCH = (
    "call `profiler.step()` after each step and give the profiler: "
    "`schedule=torch.profiler.schedule(wait=10, warmup=2, active=4)`"
)


def next_capture(diagnosis: Diagnosis) -> str:
    """Where this capture tells nothing of a step, or nothing is advised; else empty."""
    if not diagnosis.ranks:
        nothing = not any(row.leads for row in ranking(diagnosis))
        return _TIME_BESIDE if diagnosis.analyses.memory.devices and nothing else ""
    windows = [rank.window for rank in diagnosis.ranks]
    if any(w.runs_once and w.start_up is not None and not w.start_up.left_out for w in windows):
        return f"Capture steps that come later; {_later(diagnosis)}."
    if any(w.runs_once for w in windows) or outside_of(diagnosis.ranks) is not None:
        return f"Capture several steps; {_later(diagnosis)}."
    if any(rank.host.graphs.whole_graphs for rank in diagnosis.ranks):
        return (
            "Capture again with the graphs' kernels: "
            "`nsys profile --trace=cuda,nvtx --cuda-graph-trace=node python train.py`."
        )
    if missing := next((r.events for r in diagnosis.ranks if r.events.work_missing), None):
        return f"Nothing can be advised: {missing.work_missing}. Capture all events, unfiltered."
    if any(row.leads and row.row.kind != "capture" for row in ranking(diagnosis)):
        return ""
    if said := _against_largest_loss(diagnosis):
        return said
    wanted = diagnosis.mfu.remedy if diagnosis.mfu.value is None else ""
    operators = diagnosis.analyses.kernel_efficiency.operators
    if operators and not any(r.gpu.name for r in diagnosis.ranks) and operators[0].roofline_frac is None:
        wanted = "No GPU is named: --set gpu_name=H100, or dtype=bf16 peak_tflops=N, gives kernels peaks."
    return f"No loss that a known change removes was found. {wanted}".strip()


def _later(diagnosis: Diagnosis) -> str:
    if not all(source.format.startswith("nsys") for source in diagnosis.inputs):
        return _LATER_TORCH
    ranks, job = len(diagnosis.ranks), diagnosis.job
    all_in_one = job is not None and job.world_size == ranks > len(diagnosis.inputs) == 1
    return _LATER_NSYS.format(_OF_ALL.format(ranks) if all_in_one else _OF_ONE)
