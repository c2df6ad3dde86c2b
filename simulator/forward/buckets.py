"""Data parallelism of one pipeline stage: buckets of gradients, gathers of parameters, the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.simulator.forward import kernels as k
from perfdoc.simulator.forward.faults import Faults
from perfdoc.simulator.forward.hardware import Gpu
from perfdoc.simulator.forward.layer import BF16, LayerWork
from perfdoc.simulator.forward.layout import Layout
from perfdoc.simulator.forward.tape import Tape
from perfdoc.traces.known_models import ModelShape

_OPTIMIZER_KERNELS = 4


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


class StageBuckets:
    """What a stage does once a step beside its passes."""

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
        self.buckets = {c: self._buckets(c) for c in self.layers}

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
