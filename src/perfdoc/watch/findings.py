"""What is said of a finding: who, since when, for how much, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from perfdoc.analyzers.steps.levels import F64
from perfdoc.results import figures
from perfdoc.results.names import listed, opening, shorten
from perfdoc.watch.causes import Reason
from perfdoc.watch.memory import Growth
from perfdoc.watch.result import Cause, Finding
from perfdoc.watch.series import JobSeries

_AHEAD = 20
"""Steps that a capture is put ahead of the last one: a job that resumes passes there."""

_ACTIONS: dict[Cause, str] = {
    "input": "Give its loaders more workers, or look at their storage",
    "garbage": "Collect on all ranks at the same steps (gc.disable(), gc.collect() every N steps)",
    "slow_rank": "Check its clocks, temperature and host",
    "slow_stage": "Check whether a setting gave it more work, then its clocks",
    "uneven_data": "Balance tokens over ranks: pack or bucket sequences by length",
    "slow_synchronisation": "Check links and switches (NCCL_DEBUG=INFO, error counters)",
    "memory_growth": "Find what is kept from step to step: losses with their graph, caches, logged tensors",
    "configuration": "Set it back, or accept it",
    "silent_rank": "Look at its log: it was killed, or hangs",
    "hang": "Look at the stacks of all ranks (py-spy dump) and at NCCL's flight recorder, or at who ended it",
    "unknown": "Capture it",
}


def finding(
    part: JobSeries, reason: Reason, price_ns: float, times: F64, command: Sequence[str], *, onset: int | None
) -> Finding:
    """A reason in words. price_ns: of a step. times: of all steps. onset: position; None: from the first on.
    command: the words that started the job."""
    ranks = [part.ranks[i] for i in reason.ranks]
    step = float(times[-min(len(times), 50) :].mean())
    since = "Since the first step that is known" if onset is None else f"Since step {int(part.step[onset]):,}"
    price = f"{figures.brief(price_ns)} of every step ({figures.share(price_ns / step)})"
    words = _words(reason, ranks)
    more = f" ({reason.evidence})" if reason.evidence else ""
    return Finding(
        cause=reason.cause,
        onset_step=None if onset is None else int(part.step[onset]),
        ranks=ranks,
        stage=reason.stage,
        price_ns=round(price_ns),
        price_frac=price_ns / step,
        said=f"{since} {words}: {price}{more}.",
        action=_ACTIONS[reason.cause],
        capture=_capture(part, ranks, command, onset),
    )


def _words(reason: Reason, ranks: Sequence[int]) -> str:
    who = _who(ranks, reason.stage)
    many = len(ranks) != 1 and reason.stage is None
    if reason.cause == "configuration" and reason.changed is not None:
        name, old, new = reason.changed
        now, before = shorten(str(new), 48), shorten(str(old), 48)
        return f"the job runs with {shorten(str(name), 60)} = {now}, before {before}"
    if reason.cause == "input":
        return f"{who} wait{'' if many else 's'} longer for data"
    if reason.cause == "garbage":
        return f"{who} collect{'' if many else 's'} Python's garbage for longer"
    if reason.cause == "uneven_data":
        if not ranks:
            return "tokens are uneven over ranks or steps"
        return f"{who} {'have' if many else 'has'} more tokens than before, beside the others"
    if reason.cause == "slow_synchronisation":
        return "all ranks wait longer for a synchronisation for which nobody is late"
    if reason.cause in ("slow_rank", "slow_stage"):
        part = reason.phase or "own work"
        if reason.ratio is not None and reason.ratio > 1:
            return f"{who}'s {part} takes {figures.significant(reason.ratio, 2)} times its peers'"
        return f"{who}'s {part} takes longer"
    if ranks:
        return f"the work of {who} takes longer"
    return f"steps take longer{reason.phase and f', by their {reason.phase} on every rank'}"


def _who(ranks: Sequence[int], stage: int | None) -> str:
    named = listed([f"{rank:,}" for rank in ranks], 4)
    if stage is not None:
        return f"stage {stage} ({'rank' if len(ranks) == 1 else 'ranks'} {named})"
    if not ranks:
        return "all ranks"
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def _capture(part: JobSeries, ranks: Sequence[int], command: Sequence[str], onset: int | None) -> str:
    """A line that captures two steps of the first culprit and of a rank like it."""
    first = int(part.step[-1]) + _AHEAD
    chosen = list(ranks[:1])
    if chosen and len(part.ranks) > 1:
        late = part.roles[list(part.ranks).index(chosen[0])]
        like = [r for r, role in zip(part.ranks, part.roles, strict=True) if role.get("pp") == late.get("pp")]
        chosen.append(next(r for r in [*like, *part.ranks] if r != chosen[0]))
    named = ",".join(map(str, chosen))
    if list(command[:2]) == ["perfdoc", "run"]:
        return _run_again(part, onset, named, command)
    names = f" --ranks {named}" if named else ""
    window = f"perfdoc capture --steps {first}:{first + 2}{names}"
    if list(command[:1]) == ["srun"]:  # in front of each rank
        at = command.index("--")
        return f"{shlex.join(command[:at])} {window} -o capture {shlex.join(command[at:])}"
    return f"{window} -- {shlex.join(command) if command else 'torchrun … train.py …'}"


def _run_again(part: JobSeries, onset: int | None, named: str, command: Sequence[str]) -> str:
    """`perfdoc run` captures by itself. Without a checkpoint it begins at step 1, and may end at the last
    step that is known."""
    end = command.index("--") if "--" in command else len(command)
    last = int(part.step[-1])
    first = last + _AHEAD
    if not any(word.startswith(("checkpoint.load=", "load=")) for word in command[:end]):
        begins = int(part.step[0 if onset is None else onset])
        first = max(min(begins + _AHEAD, last - 1), 1)
    window = ["--profile-start", str(first), "--profile-steps", "2"]
    ranks = ["--profile-ranks", named] if named else []
    return shlex.join([*command[:end], *window, *ranks, *command[end:]])


def of_memory(part: JobSeries, grows: Growth) -> Finding:
    """Memory of a rank that grows."""
    where = "allocated memory" if grows.on_device else "memory of the process"
    left = grows.steps_left
    until = "" if left is None or left <= 0 else f"; at this rate none is left in {round(left):,} steps"
    step, rank = int(part.step[min(grows.onset, len(part.step) - 1)]), part.ranks[grows.rank]
    each = figures.size(round(grows.bytes_per_step))
    said = f"Since step {step:,} the {where} of rank {rank} grows by {each} a step{until}."
    action = _ACTIONS["memory_growth"]
    return Finding(cause="memory_growth", onset_step=step, ranks=[rank], said=said, action=action)


def of_silent_ranks(series: JobSeries) -> list[Finding]:
    """Ranks that write no more."""
    if not series.silent:
        return []
    who = _who(list(series.silent), None)
    said = f"{opening(who)} wrote no step while others went on."
    action = _ACTIONS["silent_rank"]
    return [Finding(cause="silent_rank", ranks=list(series.silent), said=said, action=action)]


def of_a_hang(quiet_ns: int, step_ns: int, newest: int, behind: Sequence[int], is_full: bool) -> Finding:
    """No rank writes any more. behind: ranks that did not end the newest step, if others did. is_full: the
    disk has no room, so that rows may wait in memory."""
    steps = figures.plural(quiet_ns // step_ns, "step")
    within = f"; {_who(behind, None)} did not end step {newest:,}" if behind else ""
    full = "the disk of the run directory is full, so that rows may wait in memory; else " if is_full else ""
    said = (
        f"No rank wrote a step for {figures.duration(quiet_ns)}, as long as {steps}{within}: {full}"
        "the job hangs, does something else for longer than before, or was killed."
    )
    return Finding(cause="hang", onset_step=newest, ranks=list(behind), said=said, action=_ACTIONS["hang"])
