"""Data parallelism of one pipeline stage: buckets of gradients, gathers of parameters, the optimizer."""

from __future__ import annotations

from perfdoc.simulator.forward import kernels as k
from perfdoc.simulator.forward.layer import BF16, LayerWork, Setting
from perfdoc.simulator.forward.layout import table_parameters
from perfdoc.simulator.forward.tape import Tape

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
