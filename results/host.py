"""Host activity: of each rank, between ranks, and in the GPUs' idle time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from perfdoc.records import dataclass
from perfdoc.results.quality import Measured, State


@dataclass(frozen=True, kw_only=True)
class LaunchQueue(Measured):
    """Launch-queue depth: work launched and not yet started on compute streams, over the window."""

    median_depth: int | None
    """The smallest depth that holds for at least half of the window, together with the lower ones."""
    shallow_frac: float | None
    """Share of the window with a depth of 0 or 1."""
    starved_ns: int | None
    """Idle time before work that was launched too late: idle.host + gc + data of the ledger."""


@dataclass(frozen=True, kw_only=True)
class CallIdle:
    """A CUDA function, and how long the device idled while the launching thread was inside of it."""

    call: str
    count: int
    """Calls that the device idled in."""
    idle_ns: int


@dataclass(frozen=True, kw_only=True)
class ThreadWait:
    """What the launching thread waited in while the device idled."""

    kind: str
    """`gil`, `lock`, `io`, `write`, `sleep`, or `other`: no call of the capture tells."""
    call: str | None
    """Of the C library; None where none was recorded."""
    idle_ns: int


@dataclass(frozen=True, kw_only=True)
class HostSplit(Measured):
    """idle.host by what the launching thread did; the first seven sum to host_ns exactly."""

    python_ns: int | None
    """In no CUDA call: Python, the framework, or waiting."""
    computing_ns: int | None = None
    """Of python_ns: the thread was on a CPU. None without scheduling events."""
    waiting_ns: int | None = None
    """Of python_ns: off the CPU, in a system call that waits, or for the interpreter's lock. None where the
    capture has nothing of the thread's state; what both leave of python_ns is unknown."""
    between_steps_ns: int | None = None
    """Of python_ns, less waiting_ns: in pauses of at least 1 ms of idle time between the last call of a step
    and the first of the next; of a thread that launches one or two whole CUDA graphs a step and little else,
    in all above 0.1 ms that lie in no step's range. None without steps and without such a thread."""
    pausing_ns: int | None = None
    """Of python_ns, less both: in longer stretches without a CUDA call than launching takes, 10 ms, or 1 ms
    where launches mostly lie further apart than that, or where, with steps, four a step or 0.5 % of the times
    between calls are so long, twice as long as all others and 20 times the median; 0.1 ms between graphs."""
    before_copies_ns: int | None = None
    """Of waiting_ns and pausing_ns: in gaps that a copy from the host's memory ended, as of a batch. None
    where the capture shows no copies."""
    offloaded_ns: int | None = None
    """Of python_ns: in pauses before which 16 MiB or more go to the host, half of it to return behind them,
    as of an optimizer there. None where the capture shows no copies."""
    waits: list[ThreadWait] = field(default_factory=list)
    """waiting_ns by call, the largest first; a call inside another one counts in both."""
    synchronising_ns: int | None
    """In a call that waits for the device. The device mostly runs meanwhile; the cost of a wait comes after
    it, see SyncCalls.idle_caused_ns."""
    allocation_ns: int | None
    """Where calls nest, allocation goes before synchronising, loading, launching, allocation in a stream's
    order, other."""
    module_load_ns: int | None
    """In a call that loads device code (lazy loading, at the first launch of a kernel)."""
    launch_ns: int | None
    stream_allocation_ns: int | None
    """In cudaMallocAsync, cudaFreeAsync and their kin."""
    other_call_ns: int | None
    host_ns: int | None
    """The ledger's idle.host."""
    calls: list[CallIdle]
    """The largest first; a function inside another one counts in both."""


@dataclass(frozen=True, kw_only=True)
class CallGroup:
    """CUDA calls of one function under one range and one operator."""

    call: str
    range_name: str | None
    """Innermost range on the thread at the call; `#` for numbers in which the calls differ; None where no
    range was open."""
    operator: str | None
    """Innermost framework operator at the call (PyTorch traces); None where none was open."""
    call_site: str | None
    """Innermost Python function of the program itself at the call, `loop.py(42): step`; None where the
    capture has no stacks."""
    count: int
    host_ns: int
    """Time in the calls, all of it, whether the device idled or not."""
    idle_inside_ns: int
    """idle.host while the thread was inside of them."""
    idle_caused_ns: int
    """idle.host that they caused, see SyncCalls; for other calls the same as inside."""


@dataclass(frozen=True, kw_only=True)
class SyncCalls(Measured):
    """Calls in which the host waited for the device."""

    count: int | None
    """That reach into the window, on threads that launch the device's work."""
    host_ns: int | None
    """Time in the calls."""
    idle_inside_ns: int | None
    idle_caused_ns: int | None
    """idle.host in gaps that began inside a call, up to the next launch, and the part of other gaps inside
    calls; each nanosecond once. An upper bound of the gain of removing the calls: if the host would be late
    without them too, the gap stays."""
    groups: list[CallGroup]
    """Most idle caused first."""
    groups_left_out: int
    call_site: str | None
    """Of the costliest group whose Python function is known; None with call_site_reason."""
    call_site_reason: str


@dataclass(frozen=True, kw_only=True)
class AllocCalls(Measured):
    """Calls that allocate or free memory through CUDA; a settled caching allocator makes none."""

    count: int | None
    host_ns: int | None
    idle_inside_ns: int | None
    """idle.host while the launching thread was inside of them."""
    steps: int | None
    """Steps of the window; None where it has none, and the calls are those of the whole window."""
    steps_with_calls: int | None
    last_step_count: int | None
    """Calls in the last step: 0 in a job whose allocator has settled."""
    groups: list[CallGroup]
    """Most idle first."""
    groups_left_out: int

    @property
    def recurring(self) -> bool:
        """Whether they come in most steps, or steps are not known: what warms up does not."""
        return not self.steps or 2 * (self.steps_with_calls or 0) >= self.steps


@dataclass(frozen=True, kw_only=True)
class HostPauses(Measured):
    """Garbage collections, or waits for data, on the host."""

    count: int | None
    """On the host inside the window; one inside another is one."""
    total_ns: int | None
    """Union, inside the window."""
    idle_ns: int | None
    """What of it the device idled for: the ledger's idle.gc or idle.data."""
    steps_with: int | None
    """Steps in which one began, or that one between steps held up; None where the window has no steps."""
    worst_ns: int | None
    worst_name: str | None
    worst_step: str | None
    """Name of the step in which the longest began or that it held up; None outside of all steps."""


@dataclass(frozen=True, kw_only=True)
class DataPauses(HostPauses):
    """Waits for data; idle_ns by evidence, strongest first."""

    idle_range_ns: int | None = None
    """A range names the loader."""
    idle_thread_ns: int | None = None
    """No range does: the launching thread waited, between one step's last CUDA call and the next one's
    first."""
    idle_position_ns: int | None = None
    """Nothing but that place and the length of the pause tells: likely a wait for data, not certainly."""


@dataclass(frozen=True, kw_only=True)
class SmallKernelName:
    """Small kernels of one name."""

    name: str
    count: int
    total_ns: int
    launch_ns: int
    """Time in the calls that launched them."""
    idle_before_ns: int
    """idle.host in the gaps that they ended."""


@dataclass(frozen=True, kw_only=True)
class SmallKernels(Measured):
    """Launch-bound kernels that are shorter than their launching call."""

    kernels: int | None
    """Compute kernels that were launched one by one."""
    small: int | None
    """Launch-bound, and shorter than the call that launched them."""
    small_ns: int | None
    """Their own time."""
    idle_before_ns: int | None
    """idle.host in the gaps that small ones ended."""
    median_kernel_ns: int | None
    """Of all these kernels."""
    median_launch_interval_ns: int | None
    """From one launch to the next on a thread, for launch-bound kernels: host time of a kernel, framework
    included."""
    names: list[SmallKernelName]
    """Small ones by name, most idle before them first."""


@dataclass(frozen=True, kw_only=True)
class GraphCoverage(Measured):
    """How much kernel work CUDA graphs launched."""

    time_frac: float | None
    """Time of graph kernels and whole graphs, as a share of that of all kernels and whole graphs."""
    kernel_frac: float | None
    """Share of kernels, by count; None where graphs were traced as a whole, their kernels unseen."""
    kernels: int | None
    graph_kernels: int | None
    """Their rows name a graph node, or a graph launch launched them."""
    whole_graphs: int | None
    """Graph executions traced as one row each."""
    kernel_ns: int | None
    """Sum of durations inside the window; concurrent kernels count twice."""
    graph_ns: int | None
    """What of it graphs launched, whole graphs included."""


@dataclass(frozen=True, kw_only=True)
class HostActivity(Measured):
    """The host of one rank inside its window; measured where any part of it is."""

    launch_queue: LaunchQueue
    idle_split: HostSplit
    sync_calls: SyncCalls
    alloc_calls: AllocCalls
    gc: HostPauses
    data: DataPauses
    small_kernels: SmallKernels
    graphs: GraphCoverage


def allocates(hosts: Sequence[HostActivity], idle_ns: int) -> tuple[str, str]:
    """(what hosts allocate or free in at least half of this idle time, ` in 1 of 10 steps` where these are
    few); both empty where they do so for less."""
    calls = [host.alloc_calls for host in hosts if host.alloc_calls.count]
    if not calls or 2 * sum(host.idle_split.allocation_ns or 0 for host in hosts) < max(idle_ns, 1):
        return "", ""
    groups = [group for found in calls for group in found.groups]
    pinning_ns = sum(group.idle_inside_ns for group in groups if "Host" in group.call)
    pins = 2 * pinning_ns >= sum(group.idle_inside_ns for group in groups)
    what = "pinned host memory" if pins else "GPU memory"
    most = max(calls, key=lambda found: found.steps_with_calls or 0)
    return what, "" if most.recurring else f" in {most.steps_with_calls} of {most.steps} steps"


@dataclass(frozen=True, kw_only=True)
class SlowestRank:
    """A rank that had the longest host time of some steps."""

    label: str
    steps: int
    recurrence_frac: float
    """Share of the common steps."""
    median_lag_ns: int
    """Over those steps, behind the median of the ranks."""
    beyond_chance: bool
    """Slowest in more steps than by chance among equal ranks, and by more than twice the noise. A rank
    without it is not slow."""


@dataclass(frozen=True, kw_only=True)
class UnsynchronisedGc(Measured):
    """Garbage collection at different steps on different ranks."""

    collecting_steps: int | None
    """Common steps in which at least one rank collected."""
    split_steps: int | None
    """Steps in which some ranks collected and others did not."""
    slowest_sum_ns: int | None
    """Sum over steps of the longest collection of any rank: what the job pays where every step waits for its
    slowest rank."""
    worst_rank_ns: int | None
    """Largest sum over steps of one rank: what the job would pay if all ranks collected in the same steps."""
    avoidable_ns: int | None
    """The difference: an upper bound of the gain of collecting in the same steps."""


@dataclass(frozen=True, kw_only=True)
class HostJitter(Measured):
    """Spread of the hosts' time for the same step between ranks; waits are not host time."""

    ranks: int | None
    """Compared: one of each process, since the devices of a process have one host."""
    common_steps: int | None
    """Steps that every rank has."""
    median_host_ns: int | None
    """Over all ranks and common steps."""
    median_spread_ns: int | None
    """Median over steps of longest less shortest host time."""
    median_spread_frac: float | None
    """Of median_host_ns."""
    noise_ns: int | None
    """Variation of one rank's host time from step to step (a standard deviation, from the MAD), without the
    part that all ranks share; None with fewer than 4 steps."""
    noise_spread_ns: int | None
    """Expected median of longest less shortest among equal ranks with this noise."""
    worst_spread_ns: int | None
    worst_step: str | None
    worst_rank: str | None
    """The rank with the longest host time in that step."""
    slowest: list[SlowestRank]
    """By number of steps. One rank with most of them is slow; many in turn: jitter."""
    gc: UnsynchronisedGc


@dataclass(frozen=True, kw_only=True)
class HostGapsAnalysis:
    """Idle time summed over ranks and the share of it that the host caused."""

    state: State
    reason: str
    host_frac: float | None
    """Idle of cause host, gc or data, as a share of all windows together."""
    causes: dict[str, int | None]
    """Nanoseconds by cause. None where no capture would show the cause: then its time is in `host`."""
    causes_reasons: dict[str, str]
    """By cause: why it is None, or which ranks are left out of it."""
