"""What a rank of a planted job does: its steps, and its part in the pipeline schedule."""

from __future__ import annotations

from perfdoc.simulator.captures.groups import BACKWARD
from tests.captures.device import DEFAULT_STREAM
from tests.captures.process import Launch
from tests.planted.engine import Arrival, Channel, Exchange, Post, Program
from tests.planted.rank import GEMM, LATENCY_NS, RankLane
from tests.planted.schedule import Pass, order_of, source_of, target_of
from tests.planted.spec import JobSpec
from tests.planted.work import MIB, SEND_RECV, Laying, RankWork

MESSAGE_BYTES = 4 * MIB
"""Of a message between stages."""
_MESSAGE_STREAMS = {
    ("send", "forward"): 40,
    ("recv", "forward"): 41,
    ("send", "backward"): 42,
    ("recv", "backward"): 43,
}


def message_bytes(spec: JobSpec) -> int:
    """Of a message between stages: with layers, a rank's part of the activations."""
    model = spec.model
    return MESSAGE_BYTES if model is None else model.activation_bytes * spec.sequences // spec.tp


def message_ns(spec: JobSpec, channel: Channel) -> int:
    """From when both sides are there to its end."""
    if spec.model is None:
        return spec.pp_transfer_ns
    return spec.model.transfer_ns(message_bytes(spec), channel[:2])


class RankProgram(RankWork):
    """The program of one rank."""

    def __init__(self, lane: RankLane) -> None:
        super().__init__(lane)
        self.posted: list[tuple[Channel, int, Launch]] = []
        """Messages that run beside compute; their kernels are laid when all is over."""

    def run(self) -> Program:
        """All steps."""
        lane = self.lane
        lane.introduce()
        # Work before the first step lies outside of the window and must not count.
        lane.compute(50_000, name=GEMM)
        lane.wait_for_device()
        for step in range(self.spec.steps):
            begin = lane.host_ns
            lane.hold("data", self.spec.data_ns)
            lane.step_starts.append(lane.copy(2 * MIB, 41_003))
            if self.spec.pp == 1:
                for what in order_of(pp=1, vpp=1, stage=0, micro_batches=self.spec.micro_batches)[0]:
                    yield from self.lay_pass(step, what)
            elif self.spec.vpp == 1:
                yield from self.blocking_pipeline(step)
            else:
                yield from self.overlapped_pipeline(step)
            yield from self.optimizer()
            lane.wait_for_device()
            lane.range(f"perfdoc.step {step}", begin, lane.host_ns)
            lane.host_ns += 20_000

    # Pipelines.

    def blocking_pipeline(self, step: int) -> Laying:
        """1F1B in which a stage stands still while it sends and receives, as megatron-core's default does."""
        order, warm = self._order()
        steady = order[warm : len(order) - warm]
        for what in order[:warm]:
            yield from self.exchange(None, what)
            yield from self.lay_pass(step, what)
            yield from self.exchange(what, None)
        for at, what in enumerate(steady):
            if at == 0:
                yield from self.exchange(None, what)
            yield from self.lay_pass(step, what)
            yield from self.exchange(what, steady[at + 1] if at + 1 < len(steady) else None)
        for what in order[len(order) - warm :]:
            yield from self.exchange(None, what)
            yield from self.lay_pass(step, what)
            yield from self.exchange(what, None)

    def exchange(self, sent: Pass | None, awaited: Pass | None) -> Laying:
        """One kernel that sends a pass's output and receives another's input, and that compute waits for."""
        lane, group = self.lane, self.lane.groups["pp"]
        channels = [c for c in (self._out(sent), self._in(awaited)) if c is not None]
        if not channels:
            return
        lane.order_streams(DEFAULT_STREAM, group.stream)
        calls = tuple(("ncclSend", c[1]) if c[0] == lane.rank else ("ncclRecv", c[0]) for c in channels)
        launch, returned = lane.call_nccl("", group, message_bytes(self.spec), calls)
        start = max(lane.now_ns + self.spec.pp_handover_ns, returned + LATENCY_NS)
        end = yield Exchange(rank=lane.rank, channels=tuple(channels), start_ns=start)
        lane.idle_until(start, returned, group.stream)
        lane.communication(SEND_RECV, "pp", start, end, group.stream, launch)
        lane.stretch("comm.pp", end)
        lane.last_stream = group.stream
        lane.order_streams(group.stream, DEFAULT_STREAM, end)

    def overlapped_pipeline(self, step: int) -> Laying:
        """Interleaved 1F1B whose messages have streams of their own: compute waits for what it needs only.

        The receive for the next pass of a kind is posted as the one before it ends; the first of all, and
        the first backward's, as the stage starts and as it has warmed up.
        """
        order, warm = self._order()
        arrivals: dict[Pass, tuple[Channel, int]] = {}
        last_forward = order[max(warm - 1, 0)]
        yield from self._receive(order[0], arrivals)
        for at, what in enumerate(order):
            if what in arrivals:
                channel, number = arrivals.pop(what)
                end = yield Arrival(channel=channel, number=number)
                stream = self._stream(channel)
                self.lane.order_streams(stream, DEFAULT_STREAM, end)
                if end > self.lane.now_ns:
                    self.lane.stretch("comm.pp", end)
                    self.lane.last_stream = stream
            yield from self.lay_pass(step, what)
            if (out := self._out(what)) is not None:
                yield from self._post(out)
            later = order[at + 1 :]
            following = [next((p for p in later if p.forward == what.forward), None)]
            if what == last_forward:
                following.append(next(p for p in later if not p.forward))
            for awaited in following:
                if awaited is not None:
                    yield from self._receive(awaited, arrivals)
        # The stage waits for its last sends before it goes on.
        for channel in {c for c, _, _ in self.posted if c[0] == self.lane.rank}:
            number = max(n for c, n, _ in self.posted if c == channel)
            end = yield Arrival(channel=channel, number=number)
            if end > self.lane.now_ns:
                self.lane.stretch("comm.pp", end)
                self.lane.last_stream = self._stream(channel)

    def _receive(self, what: Pass, arrivals: dict[Pass, tuple[Channel, int]]) -> Laying:
        channel = self._in(what)
        if channel is not None:
            yield from self._post(channel)
            arrivals[what] = channel, self.posted[-1][1]

    def _post(self, channel: Channel) -> Laying:
        lane = self.lane
        group = lane.groups["pp" if channel[2] == "forward" else BACKWARD]
        lane.order_streams(DEFAULT_STREAM, self._stream(channel))
        sends = channel[0] == lane.rank
        call = ("ncclSend", channel[1]) if sends else ("ncclRecv", channel[0])
        launch, returned = lane.call_nccl("", group, message_bytes(self.spec), (call,))
        ready = max(lane.now_ns, returned + LATENCY_NS)
        number = yield Post(rank=lane.rank, channel=channel, ready_ns=ready)
        self.posted.append((channel, number, launch))

    def _stream(self, channel: Channel) -> int:
        return _MESSAGE_STREAMS["send" if channel[0] == self.lane.rank else "recv", channel[2]]

    def _order(self) -> tuple[list[Pass], int]:
        spec = self.spec
        return order_of(
            pp=spec.pp, vpp=spec.vpp, stage=self.lane.place.stage, micro_batches=spec.micro_batches
        )

    def _in(self, what: Pass | None) -> Channel | None:
        stage, ranks = self.lane.place.stage, self.lane.groups["pp"].ranks
        source = None if what is None else source_of(what, pp=self.spec.pp, vpp=self.spec.vpp, stage=stage)
        if what is None or source is None:
            return None
        return ranks[source], self.lane.rank, "forward" if what.forward else "backward"

    def _out(self, what: Pass | None) -> Channel | None:
        stage, ranks = self.lane.place.stage, self.lane.groups["pp"].ranks
        target = None if what is None else target_of(what, pp=self.spec.pp, vpp=self.spec.vpp, stage=stage)
        if what is None or target is None:
            return None
        return self.lane.rank, ranks[target], "forward" if what.forward else "backward"

    def lay_messages(self, times: dict[Channel, list[tuple[dict[int, int], int]]]) -> None:
        """The kernels of messages that ran beside compute, once it is known when they did."""
        for channel, number, launch in self.posted:
            starts, end = times[channel][number]
            stream = self._stream(channel)
            self.lane.communication(SEND_RECV, "pp", starts[self.lane.rank], end, stream, launch)
