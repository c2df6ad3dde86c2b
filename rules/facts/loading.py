"""How batches are loaded: by worker processes or not, and what to do where these do not keep up."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.device.stalls import wait_kind
from perfdoc.patterns import pattern_of
from perfdoc.results.figures import per_cent
from perfdoc.results.host import ThreadWait
from perfdoc.results.names import shorten
from perfdoc.rules.engine.gain import RankMeasurement
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.graphs import between_steps_ns, pausing_ns, waiting_ns

_QUEUE = r"p?poll|p?select|epoll_p?wait\d?|(sem|pthread_cond)_(timed|clock)wait|.*queues?\.py.*"
"""What a process waits in for a batch of another one: a queue's get with a time limit."""
_MOST = 0.5
"""Of the waiting time."""
BY_WORKERS = (
    "Time one batch in a worker (decoding, augmenting, tokenising, storage): worker processes load already "
    "and do not keep up. Then give it more workers (num_workers), as long as cores and storage have room, "
    "and a larger prefetch_factor where batches differ."
)
NONE_YET = (
    "Prepare batches in worker processes: `DataLoader(..., num_workers=4, pin_memory=True)`; twice as many "
    "while the stall shrinks."
)
_PIPELINE = (
    "Prepare batches ahead of the step: `.map(..., num_parallel_calls=tf.data.AUTOTUNE)` and "
    "`.prefetch(tf.data.AUTOTUNE)`, or worker processes of another loader (Grain)."
)
FASTER, AHEAD = "Make the loader's workers faster", "Load batches ahead of the step"
_NOT_PINNED = " pin_memory=True, if it is not set: the copy to the device then does not wait."


def loads_ahead(case: Case) -> bool:
    """Whether worker processes are known to prepare batches, by the settings or the capture's names."""
    return "workers" in case.program.marks or (case.number("dataloader_num_workers") or 0) > 0


def by_hand(case: Case) -> str:
    """What to do in words."""
    if case.program.marks & {"tensorflow", "jax"} and "pytorch" not in case.program.marks:
        return _PIPELINE
    if not loads_ahead(case):
        return NONE_YET
    return BY_WORKERS + ("" if "pins" in case.program.marks else _NOT_PINNED)


def awaits_batch(case: Case) -> str:
    """What shows that a host that waits does so for its next batch, strongest first; empty where nothing
    does: the loader's workers are there and no range shows when it waits for them, a copy to the device
    follows, or the calls are those of a queue."""
    if mostly_in(
        case, lambda name: bool(pattern_of(_NO_BATCH).search(name)) and not pattern_of(_BATCH).search(name)
    ) or sends(case):
        return ""
    copied = _copies_follow(case)
    copies = any(rank.host.idle_split.before_copies_ns is not None for rank in case.ranks)
    unnamed = not any(_names_loader(rank) for rank in case.ranks)
    if loads_ahead(case) and unnamed and (copied or not copies):  # a batch is copied once it is there
        return "worker processes load its batches"
    if copied:
        return copied
    splits = [rank.host.idle_split for rank in case.ranks if waiting_ns(rank)]
    waits = [wait for split in splits for wait in split.waits]
    queued = [wait for wait in waits if pattern_of(_QUEUE).fullmatch(wait.call or "")]
    whole = sum(split.waiting_ns or 0 for split in splits)
    if not whole or sum(wait.idle_ns for wait in queued) < _MOST * whole:
        return ""
    return f"it waits in {max(queued, key=lambda wait: wait.idle_ns).call}, as for another process's queue"


REQUESTS = "want of requests or their inputs"
_NO_REQUESTS_NS, _A_TENTH = 50_000_000, 0.1
"""An engine schedules in milliseconds; of idle time, one such pause where steps do not tell of each."""
_DECODES = pattern_of(r"(?i)context_0\(|^(step\[)?decode\b")
"""Steps that only go on with answers that were begun, by vLLM's, SGLang's and ATOM's names."""


def awaits_requests(case: Case) -> bool:
    """Whether an inference engine idles mostly in pauses that are far longer than scheduling takes: nothing
    asks it for tokens then, and it is no slower for them. Pauses in most steps or in answers are its own, but
    for TensorRT: what prepares its inputs is no part of it."""
    if not case.program.serves:
        return False
    long_ns = 0.0
    for rank in case.ranks:
        if case.program.is_tensorrt:
            long_ns += awaiting_ns(rank) + between_steps_ns(rank)
            continue
        by_step = rank.step_ledgers.leaf_ns.get("idle.host")
        if by_step is not None:
            steps = pairwise((*rank.step_ledgers.names, ""))
            may_lack = [step != following or not _DECODES.search(step) for step, following in steps]
            long = by_step[(by_step >= _NO_REQUESTS_NS) & may_lack]
            silent_ns = awaiting_ns(rank) + between_steps_ns(rank)
            long_ns += min(float(long.sum()), silent_ns) if len(long) < _MOST * len(by_step) else 0.0
        elif longest_ns(case) >= max(_NO_REQUESTS_NS, _A_TENTH * rank.ledger.idle.host):
            long_ns += awaiting_ns(rank)
    return long_ns >= _MOST * sum(rank.ledger.idle.host for rank in case.ranks) > 0


def _names_loader(rank: RankMeasurement) -> bool:
    """Whether ranges of the capture name the loader: a wait in them is idle.data, so that no other one is for
    it."""
    data = rank.host.data
    return bool(data.count) and not (data.idle_thread_ns or data.idle_position_ns)


def awaiting_ns(rank: RankMeasurement) -> int:
    """idle.host in which the launching thread waits, or pauses for longer than launching takes."""
    return waiting_ns(rank) + pausing_ns(rank)


def waits_elsewhere(case: Case) -> bool:
    """Whether most of the host's idle time is a wait for something other than the device: off the CPU, likely
    for a batch, or work there on what the device sent. Without calls that wait for the device it may be as
    long, or hidden: nothing tells."""
    if offloads(case) or awaits_requests(case):
        return True
    idle, waiting, awaiting = (
        case.share(of) or 0.0 for of in (lambda r: r.ledger.idle.host, waiting_ns, awaiting_ns)
    )
    most = _MOST * idle
    return idle > 0 and (waiting >= most or (awaiting >= most and bool(awaits_batch(case))))


def copy_in_turn(case: Case) -> bool:
    """Whether each rank's host holds its device up for about as long as the others copy, all of them
    together, and no two copy at once: one copies while the others wait for it, one after the other."""
    copied = [rank.ledger.exposed_memcpy for rank in case.ranks]
    held = [rank.ledger.idle.host for rank in case.ranks]
    apart = [abs(ns - (sum(copied) - own)) for ns, own in zip(held, copied, strict=True)]
    if len(copied) < 2 or not min(copied) or max(apart) > _IN_TURN * min(held):
        return False
    when = sorted(span for span in map(_copies, case.ranks) if span)
    follow = (later[0] >= span[1] - _IN_TURN * (span[1] - span[0]) for span, later in pairwise(when))
    return len(when) == len(copied) and all(follow)


def _copies(rank: RankMeasurement) -> tuple[int, int] | None:
    """From when until when, before its step's end, a rank copies; None where no stretch is most of it."""
    ends = {step.name: step.end_ns for step in rank.window.step_list}
    for spot, step in ((i.spot, i.step) for i in rank.instances if i.spot.key == "exposed_memcpy"):
        if step in ends and spot.cost_ns * len(ends) >= _MOST * rank.ledger.exposed_memcpy:
            return spot.start_ns - ends[step], spot.end_ns - ends[step]
    return None


_IN_TURN = 0.1
"""Of what a host holds up, that its idle time may differ; of a copy, that the next may begin earlier."""


def offloads(case: Case) -> bool:
    """Whether most pauses of the host are where it may work on what steps sent it."""
    silent = sum(awaiting_ns(rank) + between_steps_ns(rank) for rank in case.ranks)
    sent = sum(rank.host.idle_split.offloaded_ns or 0 for rank in case.ranks)
    return sent >= _MOST * silent > 0 and not sends(case)


_NO_BATCH = (
    r"((?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?i:(all_?)?(reduce|gather)|broadcast|barrier|checkpoint|saving"
    r"|save(?![a-z])|compil(e|ing|ation)|optimi[sz]er|(optim|adamw?)(?![a-z])|swap|offload"
    r"|env(ironment)?s?(?![a-z])|rollout|simulat)"
)
_BATCH = "(?i)batch|loader|dataset"
"""In the name of a range in which a host waits: for no batch, at a word's beginning; for one all the same."""


def mostly_in(case: Case, of: Callable[[str], bool]) -> bool:
    """Whether most idle.host lies in ranges of such names, as `paused_in` has each rank's."""
    spots = (i.spot for r in case.ranks for i in r.instances if i.spot.key == "idle.host")
    inside_ns = sum(spot.inside_ns for spot in spots if of(f"`{shorten(spot.inside, 64)}`"))
    return inside_ns >= _MOST * sum(rank.ledger.idle.host for rank in case.ranks) > 0


def paused_in(case: Case, step: str = "", key: str = "idle.host") -> str:
    """The range that the host's longest idle time lies in, or that of key, of all ranks, or of those in a
    step; empty where none but a step's does."""
    longest = _longest(case, step, key)
    return f"`{shorten(longest.inside, 64)}`" if longest is not None and longest.inside else ""


def held_in(case: Case, name: str) -> str:
    """The range that a rank of this name pauses in for most of idle.host, as one that logs; empty where none
    is. One that launches slowly does so in whatever it runs."""
    for rank in (r for r, label in zip(case.ranks, case.job.labels, strict=False) if label == name):
        spot = next((i.spot for i in rank.instances if i.spot.key == "idle.host"), None)
        paused_ns = min(spot.inside_ns, awaiting_ns(rank) + between_steps_ns(rank)) if spot is not None else 0
        if spot is not None and paused_ns >= _MOST * rank.ledger.idle.host > 0:
            return f"`{shorten(spot.inside, 64)}`"
    return ""


def _longest(case: Case, step: str = "", key: str = "idle.host") -> Spot | None:
    found = (i for r in case.ranks for i in r.instances if i.spot.key == key and step in ("", i.step))
    return max((i.spot for i in found), key=lambda spot: spot.cost_ns, default=None)


def longest_ns(case: Case) -> int:
    """The host's longest idle time on any rank; 0 where it has little."""
    longest = _longest(case)
    return 0 if longest is None else longest.cost_ns


def pause_words(case: Case) -> str:
    """How often the host pauses or waits, and where, as it follows that: ` once a step, in `log``. Where no
    range says it, in which call of the C library it mostly waits."""
    often = {next((i.spot.often for i in r.instances if i.spot.key == "idle.host"), "") for r in case.ranks}
    where = paused_in(case)
    if not (where and mostly_in(case, lambda name: name == where)):
        where = awaited_call(case)
    return f"{often.pop() if len(often) == 1 else ''}{f', in {where}' if where else ''}"


def _waits(ranks: Sequence[RankMeasurement]) -> Iterator[ThreadWait]:
    return (wait for rank in ranks for wait in rank.host.idle_split.waits)


def awaited_call(case: Case, ranks: Sequence[RankMeasurement] = ()) -> str:
    """The call of the C library or of MPI that hosts of these ranks, or of all, mostly wait in; empty where
    none is most of it."""
    waits = Counter[str]()
    for wait in _waits(ranks or case.ranks):
        waits[shorten(wait.call or "", 64)] += wait.idle_ns
    where, ns = waits.most_common(1)[0] if waits else ("", 0)
    return where if ns >= _MOST * sum(map(awaiting_ns, ranks or case.ranks)) else ""


def sends(case: Case) -> bool:
    """Whether hosts mostly wait in calls that write or send: nobody waits for a batch there, or computes."""
    inside = sum(wait.idle_ns for wait in _waits(case.ranks) if wait.kind == "write")
    return inside >= _MOST * sum(map(awaiting_ns, case.ranks)) > 0


def exchanges_by_mpi(case: Case, copied_ns: int = 0) -> bool:
    """Whether hosts mostly wait in calls of MPI that exchange. copied_ns: and what they copy so long is what
    they exchange, which between hosts takes about as long at least."""
    calls = pattern_of(r"(?i)P?MPI_(?!I?barrier|Init|Finalize)\w+")
    inside = sum(wait.idle_ns for wait in _waits(case.ranks) if calls.fullmatch(wait.call or ""))
    return inside >= _MOST * max(sum(map(awaiting_ns, case.ranks)), copied_ns) > 0


NO_HELP = " Fewer launches do not help."
OSRT = "nsys --trace=osrt,python-gil names the wait. "
BY_MPI = (
    "The host exchanges through MPI there: let NCCL do it between the GPUs (Horovod: built with "
    "HOROVOD_GPU_OPERATIONS=NCCL), or give MPI that is CUDA-aware the GPUs' memory."
)
_FIND_WAIT = (
    "Find what the thread waits for{}: a batch, a lock that another thread holds (Python's included), a "
    f"file, the network, or a free core.{NO_HELP}"
)
_FIND_WRITE = (
    "Find what it writes or sends in {}: a checkpoint or a log can go to another thread, or be rarer."
    + NO_HELP
)
_FIND_LAST = "Find which rank comes last to {}, and what it does before: the others wait for it." + NO_HELP
_A_RANGE = "A range around the call that fetches a batch (or --data-range) tells whether it is data."


def find_wait(case: Case) -> str:
    """What the capture names is not asked for."""
    if exchanges_by_mpi(case):
        return BY_MPI + NO_HELP
    if call := awaited_call(case):
        if "MPI_" in call:
            return _FIND_LAST.format(call)
        if wait_kind(call) == "write":
            return _FIND_WRITE.format(call)
        return f"{_FIND_WAIT.format(f' in {call}')} {_A_RANGE}"
    return f"{_FIND_WAIT.format('')} {OSRT}{_A_RANGE}"


def _copies_follow(case: Case) -> str:
    if offloads(case):  # what comes back may be weights
        return ""
    whole = sum(map(awaiting_ns, case.ranks))
    before = sum(rank.host.idle_split.before_copies_ns or 0 for rank in case.ranks)
    if not whole or before < _MOST * whole:
        return ""
    return f"a copy from the host's memory ends {per_cent(before / whole)} of it"
