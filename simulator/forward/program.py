"""The tape of one pipeline stage: its passes in order, messages, gradient buckets, the optimizer."""

from __future__ import annotations

from typing import TypeAlias

from perfdoc.analyzers.pipeline.layout import pass_order, warm_up_forwards
from perfdoc.simulator.captures.groups import BACKWARD
from perfdoc.simulator.forward.buckets import StageBuckets
from perfdoc.simulator.forward.layer import Setting
from perfdoc.simulator.forward.tape import PYTHON_NS, Message, Tape

Pass: TypeAlias = tuple[bool, int, int]
"""(forward?, micro-batch, model chunk)."""


def neighbours(what: Pass, *, pp: int, vpp: int, stage: int) -> tuple[int | None, int | None]:
    """The stage whose output a pass needs, and the one that needs its own; None where it is none."""
    is_forward, _, chunk = what
    place = chunk * pp + stage
    before = (place - 1) % pp if place else None
    behind = (place + 1) % pp if place < pp * vpp - 1 else None
    return (before, behind) if is_forward else (behind, before)


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
        self._starved = 2 if setting.faults.launch_ns else 0

    def record(self) -> Tape:
        """The whole step."""
        tape, layout = self.tape, self.layout
        tape.copy(layout.seq * layout.mbs * 16 // layout.cp * 4, 38_009)
        if self._gathers_ahead:
            self._gather_first()
        order = pass_order(layout.pp, layout.vpp, self.stage, layout.passes)
        warm = warm_up_forwards(pp=layout.pp, vpp=layout.vpp, stage=self.stage, micro_batches=layout.passes)
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
            self._alone(what)
        for at, what in enumerate(steady):
            if at == 0:
                self._exchange(None, what)
            self._pass(what)
            self._exchange(what, steady[at + 1] if at + 1 < len(steady) else None)
        for what in order[len(order) - warm :]:
            self._alone(what)

    def _alone(self, what: Pass) -> None:
        self._exchange(None, what)
        self._pass(what)
        self._exchange(what, None)

    def _sides(self, sent: Pass | None, awaited: Pass | None) -> list[tuple[int, int, bool]]:
        """(sender, receiver, forward) of the messages around a pass."""
        layout, sides = self.layout, []
        for what, sends in ((sent, True), (awaited, False)):
            if what is not None:
                other = neighbours(what, pp=layout.pp, vpp=layout.vpp, stage=self.stage)[sends]
                if other is not None:
                    sides.append((self.stage, other, what[0]) if sends else (other, self.stage, what[0]))
        return sides

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
        last_sent: int | None = None
        self._receive(order[0])
        for at, what in enumerate(order):
            self.tape.wait(self.received.pop(what, None))
            self._pass(what)
            for side in self._sides(what, None):
                last_sent = self._post(side, sends=True)
            later = order[at + 1 :]
            following = [next((p for p in later if p[0] == what[0]), None)]
            if at == max(warm - 1, 0):
                following.append(next(p for p in later if not p[0]))
            for awaited in following:
                if awaited is not None and awaited not in self.received:
                    self._receive(awaited)
        self.tape.wait(last_sent)

    def _receive(self, what: Pass) -> None:
        for side in self._sides(None, what):
            self.received[what] = self._post(side, sends=False)

    def _post(self, side: tuple[int, int, bool], *, sends: bool) -> int:
        group = "pp" if side[2] else BACKWARD
        return self._message([side], group, _MESSAGE_STREAMS[sends, side[2]])

    # Passes.

    def _pass(self, what: Pass) -> None:
        (is_forward, micro_batch, chunk), tape = what, self.tape
        if is_forward and self._starved > 0:
            self._starved -= 1
            tape.python_ns = PYTHON_NS + self.setting.faults.launch_ns
        outer = tape.open()
        begin = tape.open()
        first = len(tape.ops)
        if is_forward:
            self._forward(chunk, is_first=micro_batch == 0)
        else:
            self._backward(chunk, is_last=micro_batch == self.layout.passes - 1)
        tape.passes.append((is_forward, micro_batch, chunk, first, len(tape.ops)))
        tape.close("perfdoc.forward" if is_forward else "perfdoc.backward", begin)
        if is_forward:
            tape.close(f"perfdoc.micro_batch {micro_batch}", outer)
        tape.python_ns = PYTHON_NS

    def _forward(self, chunk: int, *, is_first: bool) -> None:
        if self._is_first(chunk):
            if is_first:
                self._await_parameters(chunk, 0)
            self.work.embedding(backward=False)
        for at, layer in enumerate(self.layers[chunk]):
            if is_first:
                self._await_parameters(chunk, at)
            self.work.forward(layer)
        if self._is_last(chunk):
            self.work.output(backward=False)

    def _backward(self, chunk: int, *, is_last: bool) -> None:
        if self._is_last(chunk):
            self.work.output(backward=True)
        for at, layer in reversed(list(enumerate(self.layers[chunk]))):
            self.work.backward(layer)
            if is_last and self.layout.overlap_grad_reduce:
                self._reduce(chunk, at)
        if self._is_first(chunk):
            self.work.embedding(backward=True)
