"""The tape of one pipeline stage: its passes in order, messages, buckets of gradients, the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.simulator.forward import kernels as k
from perfdoc.simulator.forward.faults import Faults
from perfdoc.simulator.forward.hardware import Gpu
from perfdoc.simulator.forward.layer import BF16, LayerWork
from perfdoc.simulator.forward.layout import Layout
from perfdoc.simulator.forward.tape import PYTHON_NS, Message, Tape
from perfdoc.simulator.planted_groups import BACKWARD
from perfdoc.simulator.planted_schedule import Pass, order_of, source_of, target_of
from perfdoc.traces.known_models import ModelShape

DATA_NS = 180_000
"""Loading a batch where nothing is wrong."""
_OPTIMIZER_KERNELS = 4
_MESSAGE_STREAMS = {(True, True): 40, (False, True): 41, (True, False): 42, (False, False): 43}
"""By (sends, forward): of messages that run beside compute."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that the tape of a stage follows from."""

    shape: ModelShape
    layout: Layout
    faults: Faults
    gpu: Gpu
    crosses_nodes: dict[str, bool]

    def layers(self) -> dict[tuple[int, int], range]:
        """Layers of each (stage, chunk): as even as can be, the first ones longer, then as faults moved them.

        ValueError where a fault would leave a stage without layers.
        """
        lay, moved = self.layout, self.faults.moved_layers
        places = [(stage, chunk) for chunk in range(lay.vpp) for stage in range(lay.pp)]
        each, rest = divmod(self.shape.layers, len(places))
        counts = [each + (i < rest) for i in range(len(places))]
        counts[0] -= moved
        counts[-1] += moved
        if counts[0] < 1:
            raise ValueError(
                f"--fault uneven_stages={moved}: the first stage has {counts[0] + moved} layers."
            )
        found, at = {}, 0
        for place, count in zip(places, counts, strict=True):
            found[place] = range(at, at + count)
            at += count
        return found


class StageProgram:
    """Lays the step of one stage."""

    def __init__(self, setting: Setting, stage: int) -> None:
        self.setting = setting
        self.stage = stage
        self.layout = setting.layout
        self.layers = {c: r for (s, c), r in setting.layers().items() if s == stage}
        self.tape = Tape()
        self.work = LayerWork(
            self.tape, setting.shape, setting.layout, setting.faults, setting.gpu, setting.crosses_nodes
        )
        self.gathers: dict[int, int] = {}
        """By bucket, the gather of its parameters that a forward pass has to wait for."""
        self.reductions: list[int] = []
        self.edge_bytes = self.work.part_bytes
        self.received: dict[Pass, int] = {}
        """Messages that were posted for a pass."""
        self.sent: list[int] = []
        self._starved = 2 if setting.faults.launch_ns else 0
        self.buckets = {c: self._buckets(c) for c in self.layers}

    def lay(self) -> Tape:
        """The whole step."""
        tape, lay = self.tape, self.layout
        tape.copy(lay.seq * lay.mbs * 16 // lay.cp * 4, 38_009)
        if self._gathers_ahead:
            self._gather(0, 0)
        order, warm = order_of(pp=lay.pp, vpp=lay.vpp, stage=self.stage, micro_batches=lay.passes)
        if lay.pp == 1:
            for what in order:
                self._pass(what)
        elif lay.vpp == 1:
            self._blocking(order, warm)
        else:
            self._overlapped(order, warm)
        begin = tape.open()
        self._optimizer()
        tape.close("perfdoc.optimizer", begin)
        tape.synchronize()
        return tape

    # Pipelines, as in planted_step: blocking without interleaving, beside compute with it.

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

    def _is_first(self, chunk: int) -> bool:
        return self.stage == 0 and chunk == 0

    def _is_last(self, chunk: int) -> bool:
        return self.stage == self.layout.pp - 1 and chunk == self.layout.vpp - 1

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

    # Data parallelism.

    @property
    def _reduces(self) -> bool:
        return self.layout.dp * self.layout.cp > 1

    @property
    def _gathers_ahead(self) -> bool:
        return self._reduces and self.layout.distributed_optimizer and self.layout.overlap_param_gather

    def _buckets(self, chunk: int) -> list[tuple[int, str, int]]:
        """(place of the layer whose backward pass completes it, group, parameters) in backward order."""
        layers, found = self.layers[chunk], []
        shape, lay = self.setting.shape, self.layout
        table = shape.vocabulary * shape.hidden_size // lay.tp
        for group in ("dp", "edp"):
            held = table if group == "dp" and self._is_last(chunk) else 0
            for at in reversed(range(len(layers))):
                held += self.work.parameters(layers[at])[group == "edp"]
                if at == 0 and group == "dp" and self._is_first(chunk):
                    held += table
                while held >= lay.bucket_parameters:
                    found.append((at, group, lay.bucket_parameters))
                    held -= lay.bucket_parameters
                if at == 0 and held:
                    found.append((0, group, held))
        ranks = {"dp": lay.dp * lay.cp, "edp": lay.dp * lay.cp // lay.ep}
        found = [b for b in found if ranks[b[1]] > 1]
        return sorted(found, key=lambda b: -b[0])

    def _reduce_bucket(self, group: str, parameters: int) -> None:
        lay = self.layout
        ranks = lay.dp * lay.cp // (lay.ep if group == "edp" else 1)
        size = parameters * (4 if self.setting.faults.fp32_reduce else BF16)
        operation = "reduce_scatter" if lay.distributed_optimizer else "all_reduce"
        if operation == "reduce_scatter":
            size = max(1, size // ranks)
        dtype = "f32" if self.setting.faults.fp32_reduce else "bf16"
        ns = self.work.group_ns(group, operation, size)
        self.reductions.append(self.tape.communicate(group, operation, size, ns, dtype=dtype))

    def _reduce(self, chunk: int, at: int) -> None:
        for place, group, parameters in self.buckets[chunk]:
            if place == at:
                self._reduce_bucket(group, parameters)

    def _gather(self, chunk: int, first_of: int) -> None:
        """Gather bucket number `first_of` of a chunk's forward order (the last reduced comes first)."""
        buckets = self.buckets[chunk][::-1]
        if first_of < len(buckets):
            _, group, parameters = buckets[first_of]
            self._gather_bucket(group, parameters, chunk * 1_000_000 + first_of)

    def _gather_bucket(self, group: str, parameters: int, key: int) -> None:
        lay = self.layout
        ranks = lay.dp * lay.cp // (lay.ep if group == "edp" else 1)
        size = max(1, parameters * BF16 // ranks)
        ns = self.work.group_ns(group, "all_gather", size)
        self.gathers[key] = self.tape.communicate(group, "all_gather", size, ns)

    def _await_parameters(self, chunk: int, at: int) -> None:
        """Before a layer: wait for the buckets that it needs, after having sent for the next."""
        if not self._gathers_ahead:
            return
        buckets = self.buckets[chunk][::-1]
        for number, (place, _, _) in enumerate(buckets):
            key = chunk * 1_000_000 + number
            if place > at or (key in self.gathers and self.gathers[key] < 0):
                continue
            if key not in self.gathers:
                self._gather(chunk, number)
            following = (chunk, number + 1) if number + 1 < len(buckets) else (chunk + 1, 0)
            if following[0] in self.buckets and following[0] * 1_000_000 + following[1] not in self.gathers:
                self._gather(*following)
            self.tape.wait(self.gathers[key])
            self.gathers[key] = -1  # waited for

    def _optimizer(self) -> None:
        """Gradients reduced where that did not run beside the backward pass, their norm, the update."""
        tape, lay, gpu = self.tape, self.layout, self.setting.gpu
        if not lay.overlap_grad_reduce:
            for chunk in sorted(self.buckets, reverse=True):
                for _, group, parameters in self.buckets[chunk]:
                    self._reduce_bucket(group, parameters)
        for op in _last_by_stream(self.reductions, tape):
            tape.wait(op)
        whole = sum(sum(self.work.parameters(layer)) for r in self.layers.values() for layer in r)
        mine = whole // (lay.dp * lay.cp if lay.distributed_optimizer else 1)
        tape.compute(k.L2_NORM, gpu.moving_ns(mine * 4))
        if lay.tp * lay.pp > 1:
            tape.wait(tape.communicate("other", "all_reduce", 4, self.work.group_ns("other", "all_reduce", 4),
                                       dtype="f32"))  # fmt: skip
        for _ in range(_OPTIMIZER_KERNELS):
            tape.compute(k.ADAM, gpu.moving_ns(mine * 28 / _OPTIMIZER_KERNELS))
        if self._reduces and lay.distributed_optimizer and not lay.overlap_param_gather:
            for chunk in sorted(self.buckets):
                for number in range(len(self.buckets[chunk])):
                    self._gather(chunk, number)
            for op in _last_by_stream(list(self.gathers.values()), tape):
                tape.wait(op)
        cast = k.KernelNames(sm_count=gpu.sm_count, arch=90).plain("zero_grad_buffer_kernel")
        tape.compute(cast, gpu.moving_ns(whole * BF16))


def _last_by_stream(ops: list[int], tape: Tape) -> list[int]:
    found: dict[int, int] = {}
    for op in ops:
        found[tape.ops[op].stream] = op
    return list(found.values())
