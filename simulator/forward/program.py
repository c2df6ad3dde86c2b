"""The tape of one pipeline stage: its passes in order, messages, gradient buckets, the optimizer."""

from __future__ import annotations

from typing import TypeAlias

from perfdoc.analyzers.pipeline.layout import pass_order, warm_up_forwards
from perfdoc.simulator.captures.groups import BACKWARD
from perfdoc.simulator.forward import kernels as k
from perfdoc.simulator.forward.layer import BF16, LayerWork, Setting
from perfdoc.simulator.forward.layout import table_parameters
from perfdoc.simulator.forward.tape import PYTHON_NS, Message, Tape

_OPTIMIZER_KERNELS = 4


class StageBuckets:
    """What a stage does once a step beside its passes."""

    def __init__(self, setting: Setting, stage: int) -> None:
        self.setting = setting
        self.stage = stage
        self.layout = setting.layout
        self.layers = {c: r for (s, c), r in setting.layers().items() if s == stage}
        self.tape = Tape()
        self.work = LayerWork(self.tape, setting)
        self.gathers: dict[tuple[int, int], int] = {}
        """By chunk and number in it, the gather of its parameters that a forward pass has to wait for."""
        self.reductions: list[int] = []
        self.buckets = {c: self._buckets(c) for c in self.layers}
        self._in_order = {group: self._ahead(group) for group in ("dp", "edp")}
        self._awaited = dict.fromkeys(self._in_order, 0)
        """How many buckets of a group have been waited for; they are in order."""

    def _is_first(self, chunk: int) -> bool:
        return self.stage == 0 and chunk == 0

    def _is_last(self, chunk: int) -> bool:
        return self.stage == self.layout.pp - 1 and chunk == self.layout.vpp - 1

    @property
    def _reduces(self) -> bool:
        return self.layout.dp * self.layout.cp > 1

    @property
    def _gathers_ahead(self) -> bool:
        return self._reduces and self.layout.distributed_optimizer and self.layout.overlap_param_gather

    def _buckets(self, chunk: int) -> list[tuple[int, str, int]]:
        """(place of the layer whose backward pass completes it, group, parameters) in backward order."""
        layers, found = self.layers[chunk], []
        shape, layout = self.setting.shape, self.layout
        table = table_parameters(shape, tp=layout.tp)
        for group in ("dp", "edp") if layout.ep > 1 else ("dp",):
            held = table if group == "dp" and self._is_last(chunk) else 0
            for at in reversed(range(len(layers))):
                of_layer = self.work.parameters(layers[at])
                # Without expert parallelism experts are reduced with everything else.
                held += sum(of_layer) if layout.ep == 1 else of_layer[group == "edp"]
                if at == 0 and group == "dp" and self._is_first(chunk):
                    held += table
                while held >= layout.bucket_parameters:
                    found.append((at, group, layout.bucket_parameters))
                    held -= layout.bucket_parameters
                if at == 0 and held:
                    found.append((0, group, held))
        return sorted((b for b in found if self._ranks(b[1]) > 1), key=lambda b: -b[0])

    def _ranks(self, group: str) -> int:
        return self.layout.dp * self.layout.cp // (self.layout.ep if group == "edp" else 1)

    def _reduce_bucket(self, group: str, parameters: int) -> None:
        ranks = self._ranks(group)
        size = parameters * (4 if self.setting.faults.fp32_reduce else BF16)
        operation = "reduce_scatter" if self.layout.distributed_optimizer else "all_reduce"
        if operation == "reduce_scatter":
            size = max(1, size // ranks)
        dtype = "f32" if self.setting.faults.fp32_reduce else "bf16"
        ns = self.work.group_ns(group, operation, size)
        self.reductions.append(self.tape.communicate(group, operation, size, ns, dtype=dtype))

    def _reduce(self, chunk: int, at: int | None = None) -> None:
        """The buckets of a chunk, or those that one layer's backward pass completes."""
        for place, group, parameters in self.buckets[chunk]:
            if at is None or place == at:
                self._reduce_bucket(group, parameters)

    def _ahead(self, group: str) -> list[tuple[int, int, int, int]]:
        """Buckets of a group in the order of the forward (the last reduced comes first): (chunk, number in
        it, place, parameters)."""
        return [
            (chunk, number, place, parameters)
            for chunk in sorted(self.buckets)
            for number, (place, of_group, parameters) in enumerate(self.buckets[chunk][::-1])
            if of_group == group
        ]

    def _gather_first(self) -> None:
        """Send for the first bucket of each group."""
        for group, buckets in self._in_order.items():
            for chunk, number, _, parameters in buckets[:1]:
                self._gather_bucket(group, parameters, (chunk, number))

    def _gather_all(self) -> None:
        """Send for everything."""
        for chunk in sorted(self.buckets):
            for number, (_, group, parameters) in enumerate(self.buckets[chunk][::-1]):
                self._gather_bucket(group, parameters, (chunk, number))

    def _gather_bucket(self, group: str, parameters: int, key: tuple[int, int]) -> None:
        size = max(1, parameters * BF16 // self._ranks(group))
        ns = self.work.group_ns(group, "all_gather", size)
        self.gathers[key] = self.tape.communicate(group, "all_gather", size, ns)

    def _await_parameters(self, chunk: int, at: int) -> None:
        """Before a layer: wait for the buckets that it needs, after having sent for the next of their
        group."""
        if not self._gathers_ahead:
            return
        for group, buckets in self._in_order.items():
            while self._awaited[group] < len(buckets):
                i = self._awaited[group]
                of_chunk, number, place, _ = buckets[i]
                if of_chunk != chunk or place > at:
                    break
                for some_chunk, some_number, _, some in buckets[i : i + 2]:
                    if (some_chunk, some_number) not in self.gathers:
                        self._gather_bucket(group, some, (some_chunk, some_number))
                self.tape.wait(self.gathers[of_chunk, number])
                self._awaited[group] = i + 1

    def _optimizer(self) -> None:
        """Gradients reduced where that did not run beside the backward pass, their norm, the update."""
        tape, layout, gpu = self.tape, self.layout, self.setting.gpu
        if not layout.overlap_grad_reduce:
            for chunk in sorted(self.buckets, reverse=True):
                self._reduce(chunk)
        for op in _last_by_stream(self.reductions, tape):
            tape.wait(op)
        whole = sum(sum(self.work.parameters(layer)) for r in self.layers.values() for layer in r)
        mine = whole // (layout.dp * layout.cp if layout.distributed_optimizer else 1)
        tape.compute(k.L2_NORM, gpu.moving_ns(mine * 4))
        if layout.tp * layout.pp > 1:
            tape.wait(tape.communicate("other", "all_reduce", 4, self.work.group_ns("other", "all_reduce", 4),
                                       dtype="f32"))  # fmt: skip
        for _ in range(_OPTIMIZER_KERNELS):
            tape.compute(k.ADAM, gpu.moving_ns(mine * 28 / _OPTIMIZER_KERNELS))
        if self._reduces and layout.distributed_optimizer and not layout.overlap_param_gather:
            self._gather_all()
            for op in _last_by_stream(list(self.gathers.values()), tape):
                tape.wait(op)
        cast = k.KernelNames(sm_count=gpu.sm_count, arch=90).plain("zero_grad_buffer_kernel")
        tape.compute(cast, gpu.moving_ns(whole * BF16))


def _last_by_stream(ops: list[int], tape: Tape) -> list[int]:
    found: dict[int, int] = {}
    for op in ops:
        found[tape.ops[op].stream] = op
    return list(found.values())


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
