"""The tape of one pipeline stage: its passes in order, messages, gradient buckets, the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.simulator.captures.groups import BACKWARD
from perfdoc.simulator.forward.buckets import StageBuckets
from perfdoc.simulator.forward.layer import Setting
from perfdoc.simulator.forward.tape import PYTHON_NS, Message, Tape


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The forward or backward pass of one micro-batch through one model chunk of a stage."""

    forward: bool
    micro_batch: int
    chunk: int


def order_of(*, pp: int, vpp: int, stage: int, micro_batches: int) -> tuple[list[Pass], int]:
    """The passes of a stage in order, and how many forwards come before the first backward's turn.

    1F1B, interleaved where vpp is above 1 (Narayanan et al. 2021, arXiv 2104.04473): micro-batches go
    through a chunk in groups of pp, and a stage warms up with 2 (pp - stage - 1) + (vpp - 1) pp forwards
    (without interleaving with pp - stage - 1).
    """
    forwards = [
        Pass(forward=True, micro_batch=first + i, chunk=chunk)
        for first in range(0, micro_batches, pp if vpp > 1 else 1)
        for chunk in range(vpp)
        for i in range(min(pp if vpp > 1 else 1, micro_batches - first))
    ]
    backwards = [Pass(forward=False, micro_batch=f.micro_batch, chunk=vpp - 1 - f.chunk) for f in forwards]
    warm = pp - stage - 1 if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp
    warm = min(warm, len(forwards))
    order = forwards[:warm]
    for i in range(len(forwards) - warm):
        order += [forwards[warm + i], backwards[i]]
    return order + backwards[len(forwards) - warm :], warm


def source_of(step: Pass, *, pp: int, vpp: int, stage: int) -> int | None:
    """The stage whose output the pass waits for; None where it needs none, or its own."""
    if step.forward:
        return stage - 1 if stage > 0 else pp - 1 if step.chunk > 0 else None
    return stage + 1 if stage < pp - 1 else 0 if step.chunk < vpp - 1 else None


def target_of(step: Pass, *, pp: int, vpp: int, stage: int) -> int | None:
    """The stage that waits for the pass's output; None where no other does."""
    if step.forward:
        return stage + 1 if stage < pp - 1 else 0 if step.chunk < vpp - 1 else None
    return stage - 1 if stage > 0 else pp - 1 if step.chunk > 0 else None


DATA_NS = 180_000
"""Loading a batch where nothing is wrong."""
_MESSAGE_STREAMS = {(True, True): 40, (False, True): 41, (True, False): 42, (False, False): 43}
"""By (sends, forward): of messages that run beside compute."""


class StageProgram(StageBuckets):
    """Records the step of one stage on a tape."""

    def __init__(self, setting: Setting, stage: int) -> None:
        super().__init__(setting, stage)
        self.edge_bytes = self.work.part_bytes
        self.received: dict[Pass, int] = {}
        """Messages that were posted for a pass."""
        self.sent: list[int] = []
        self._starved = 2 if setting.faults.launch_ns else 0

    def record(self) -> Tape:
        """The whole step."""
        tape, layout = self.tape, self.layout
        tape.copy(layout.seq * layout.mbs * 16 // layout.cp * 4, 38_009)
        if self._gathers_ahead:
            self._gather_first()
        order, warm = order_of(pp=layout.pp, vpp=layout.vpp, stage=self.stage, micro_batches=layout.passes)
        if layout.pp == 1:
            for what in order:
                self._pass(what)
        elif layout.vpp == 1:
            self._blocking(order, warm)
        else:
            self._overlapped(order, warm)
        begin = tape.open()
        self._optimizer()
        tape.close("perfdoc.optimizer", begin)
        tape.synchronize()
        return tape

    # Pipelines: messages block without interleaving, and run beside compute with it.

    def _blocking(self, order: list[Pass], warm: int) -> None:
        steady = order[warm : len(order) - warm]
        for what in order[:warm]:
            self._exchange(None, what)
            self._pass(what)
            self._exchange(what, None)
        for at, what in enumerate(steady):
            if at == 0:
                self._exchange(None, what)
            self._pass(what)
            self._exchange(what, steady[at + 1] if at + 1 < len(steady) else None)
        for what in order[len(order) - warm :]:
            self._exchange(None, what)
            self._pass(what)
            self._exchange(what, None)

    def _sides(self, sent: Pass | None, awaited: Pass | None) -> list[tuple[int, int, bool]]:
        """(sender, receiver, forward) of the messages around a pass."""
        pp, vpp = self.layout.pp, self.layout.vpp
        found = []
        if sent is not None and (to := target_of(sent, pp=pp, vpp=vpp, stage=self.stage)) is not None:
            found.append((self.stage, to, sent.forward))
        if awaited is not None and (of := source_of(awaited, pp=pp, vpp=vpp, stage=self.stage)) is not None:
            found.append((of, self.stage, awaited.forward))
        return found

    def _message(self, sides: list[tuple[int, int, bool]], group: str, stream: int | None) -> int:
        peers = []
        for sender, receiver, _ in sides:
            other = receiver if sender == self.stage else sender
            peers.append(("ncclSend" if sender == self.stage else "ncclRecv", other - self.stage))
        ns = self.work.group_ns("pp", "send_recv", self.edge_bytes)
        op = self.tape.communicate(group, "send_recv", self.edge_bytes, ns, peers=peers, stream=stream)
        self.tape.messages += [Message(op, *side) for side in sides]
        return op

    def _exchange(self, sent: Pass | None, awaited: Pass | None) -> None:
        sides = self._sides(sent, awaited)
        if sides:
            self.tape.wait(self._message(sides, "pp", None))

    def _overlapped(self, order: list[Pass], warm: int) -> None:
        last_forward = order[max(warm - 1, 0)]
        self._receive(order[0])
        for at, what in enumerate(order):
            self.tape.wait(self.received.pop(what, None))
            self._pass(what)
            for side in self._sides(what, None):
                self.sent.append(self._post(side, sends=True))
            later = order[at + 1 :]
            following = [next((p for p in later if p.forward == what.forward), None)]
            if what == last_forward:
                following.append(next(p for p in later if not p.forward))
            for awaited in following:
                if awaited is not None and awaited not in self.received:
                    self._receive(awaited)
        self.tape.wait(self.sent[-1] if self.sent else None)

    def _receive(self, what: Pass) -> None:
        for side in self._sides(None, what):
            self.received[what] = self._post(side, sends=False)

    def _post(self, side: tuple[int, int, bool], *, sends: bool) -> int:
        group = "pp" if side[2] else BACKWARD
        return self._message([side], group, _MESSAGE_STREAMS[sends, side[2]])

    # Passes.

    def _pass(self, what: Pass) -> None:
        tape, layers = self.tape, self.layers[what.chunk]
        starved = what.forward and self._starved > 0
        if starved:
            self._starved -= 1
            tape.python_ns = PYTHON_NS + self.setting.faults.launch_ns
        outer = tape.open()
        begin = tape.open()
        first = len(tape.ops)
        if what.forward:
            self._forward(what, layers)
        else:
            self._backward(what, layers)
        tape.passes.append((what.forward, what.micro_batch, what.chunk, first, len(tape.ops)))
        tape.close("perfdoc.forward" if what.forward else "perfdoc.backward", begin)
        if what.forward:
            tape.close(f"perfdoc.micro_batch {what.micro_batch}", outer)
        tape.python_ns = PYTHON_NS

    def _forward(self, what: Pass, layers: range) -> None:
        first = what.micro_batch == 0
        if self._is_first(what.chunk):
            if first:
                self._await_parameters(what.chunk, 0)
            self.work.embedding(backward=False)
        for at, layer in enumerate(layers):
            if first:
                self._await_parameters(what.chunk, at)
            self.work.forward(layer)
        if self._is_last(what.chunk):
            self.work.output(backward=False)

    def _backward(self, what: Pass, layers: range) -> None:
        last = what.micro_batch == self.layout.passes - 1
        if self._is_last(what.chunk):
            self.work.output(backward=True)
        for at in reversed(range(len(layers))):
            self.work.backward(layers[at])
            if last and self.layout.overlap_grad_reduce:
                self._reduce(what.chunk, at)
        if self._is_first(what.chunk):
            self.work.embedding(backward=True)
