"""Forward and backward of one layer of a transformer on one rank."""

from __future__ import annotations

from perfdoc.records import dataclass
from perfdoc.simulator.forward import kernels as k
from perfdoc.simulator.forward.faults import Faults
from perfdoc.simulator.forward.hardware import Gpu
from perfdoc.simulator.forward.layout import Layout, has_experts, layer_parameters
from perfdoc.simulator.forward.tape import Tape
from perfdoc.traces.known_models import ModelShape

BF16 = 2


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that the tape of a stage follows from."""

    shape: ModelShape
    layout: Layout
    faults: Faults
    gpu: Gpu
    crosses_nodes: dict[str, bool]
    """By group: whether its ranks lie on several nodes."""

    def layers(self) -> dict[tuple[int, int], range]:
        """Layers of each (stage, chunk): as even as can be, the first ones longer, then as faults moved them.

        ValueError where a fault would leave a stage without layers.
        """
        layout, moved = self.layout, self.faults.moved_layers
        places = [(stage, chunk) for chunk in range(layout.vpp) for stage in range(layout.pp)]
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


class LayerWork:
    """Records layers on a tape. Sizes are those of one micro-batch on one rank."""

    def __init__(self, tape: Tape, setting: Setting) -> None:
        self.tape = tape
        self.shape, self.layout, self.faults = setting.shape, setting.layout, setting.faults
        self.gpu, self.crosses_nodes = setting.gpu, setting.crosses_nodes
        s, layout = self.shape, self.layout
        self.names = k.KernelNames(sm_count=self.gpu.sm_count, arch=self.gpu.compute_capability[0] * 10)
        self.tokens = layout.seq * layout.mbs // layout.cp
        self.hidden = s.hidden_size
        self.heads_width = s.attention_heads * s.kv_channels // layout.tp
        self.kv_width = max(s.query_groups // layout.tp, 1) * s.kv_channels
        self.activation_bytes = self.tokens * self.hidden * BF16
        self.part_bytes = self.activation_bytes // layout.tp if layout.sp else self.activation_bytes

    def group_ns(self, group: str, operation: str, size_bytes: int) -> int:
        """Duration of a collective over a group."""
        layout = self.layout
        ranks = {
            "dp": layout.dp * layout.cp,
            "edp": layout.dp * layout.cp // layout.ep,
            "other": layout.tp * layout.pp,
            "pp": 2,
        }
        size = ranks[group] if group in ranks else getattr(layout, group)
        return self.gpu.collective_ns(operation, size_bytes, size, crosses_nodes=self.crosses_nodes[group])

    # Tensor parallelism.

    def _tp(self, operation: str) -> int | None:
        if self.layout.tp == 1:
            return None
        if not self.layout.sp:
            if operation == "all_gather":
                return None
            operation = "all_reduce"
        size = self.part_bytes
        return self.tape.communicate("tp", operation, size, self.group_ns("tp", operation, size))

    def _gemm(self, columns: int, inner: int, *, count: int = 1, rows: int | None = None) -> int:
        rows = self.tokens if rows is None else rows
        ns = self.gpu.matrix_ns(rows, inner, columns, count=count)
        return self.tape.compute(self.names.gemm(columns, rows), ns)

    def _norm(self, *, backward: bool) -> None:
        moved = self.part_bytes * (4 if backward else 2)
        self.tape.compute(self.names.norm(backward=backward), self.gpu.moving_ns(moved))

    def _add(self) -> None:
        kernel = self.names.elementwise(k.ADD, self.part_bytes // BF16)
        self.tape.compute(kernel, self.gpu.moving_ns(3 * self.part_bytes))

    def _activation(self, width: int, tokens: int, *, backward: bool) -> None:
        kernel = self.names.elementwise(k.SWIGLU, width * tokens)
        self.tape.compute(kernel, self.gpu.moving_ns(width * tokens * BF16 * (5 if backward else 3)))

    # Attention.

    def _attend(self, *, backward: bool) -> None:
        """Fused attention, in as many parts as there are context-parallel ranks, with keys and values
        going round beside all parts but the first."""
        layout = self.layout
        factor = 2.5 if backward else 1.0
        whole = 2.0 * layout.seq * layout.seq * layout.mbs * self.heads_width / layout.cp * factor
        kernel = self.names.attention(backward=backward, blocks=self.tokens // 128 * self.heads_width // 128)
        part_ns = self.gpu.attention_ns(whole / layout.cp, backward=backward)
        size = self.tokens * self.kv_width * 2 * BF16 * (2 if backward else 1)
        for part in range(layout.cp):
            ring = None
            if part < layout.cp - 1:
                ring = self.tape.communicate(
                    "cp",
                    "send_recv",
                    size,
                    self.group_ns("cp", "send_recv", size),
                    peers=(("ncclSend", 1), ("ncclRecv", -1)),
                )
            if not layout.overlap_cp:
                self.tape.wait(ring)
            self.tape.compute(kernel, part_ns)
            if layout.overlap_cp:
                self.tape.wait(ring)

    def _attention_forward(self) -> None:
        self._norm(backward=False)
        self.tape.wait(self._tp("all_gather"))
        self._gemm(self.heads_width + 2 * self.kv_width, self.hidden)
        rope = self.names.plain("fused_rope_forward_kernel", blocks=self.tokens)
        self.tape.compute(rope, self.gpu.moving_ns(2 * self.tokens * self.heads_width * BF16))
        self._attend(backward=False)
        self._gemm(self.hidden, self.heads_width)
        self.tape.wait(self._tp("reduce_scatter"))
        self._add()

    def _attention_backward(self) -> None:
        self._gemm_backward(self.hidden, self.heads_width, before="all_gather", after=None)
        self._attend(backward=True)
        rope = self.names.plain("fused_rope_backward_kernel", blocks=self.tokens)
        self.tape.compute(rope, self.gpu.moving_ns(2 * self.tokens * self.heads_width * BF16))
        width = self.heads_width + 2 * self.kv_width
        self._gemm_backward(width, self.hidden, before=None, after="reduce_scatter")
        self._norm(backward=True)
        self._add()

    def _gemm_backward(self, columns: int, inner: int, *, before: str | None, after: str | None) -> None:
        """Gradients of input and weight of a linear layer. `before`: the gradient of the output is gathered
        first. `after`: the input is gathered again during the first GEMM (as sequence parallelism needs), and
        its gradient is reduced during the second."""
        overlap, held = self.layout.overlap_tp, self.faults.many_connections
        if before:
            self.tape.wait(self._tp(before))
        gathered = self._tp("all_gather") if after else None
        if not overlap:
            self.tape.wait(gathered)
        first = self._gemm(inner, columns)
        reduced = self._tp(after) if after else None
        self.tape.wait(gathered if overlap else reduced)
        ns = self.gpu.matrix_ns(columns, self.tokens, inner)
        second = self.tape.compute(self.names.gemm(inner, columns), ns)
        if overlap:
            self.tape.wait(reduced)
        if overlap and held:
            # Launched first, and yet behind the GEMM in the hardware's one queue.
            self.tape.held += [(c, g) for c, g in ((gathered, first), (reduced, second)) if c is not None]

    # Feed-forward.

    def _mlp_forward(self, width: int) -> None:
        gates = 2 if self.shape.gated_mlp else 1
        self._norm(backward=False)
        self.tape.wait(self._tp("all_gather"))
        self._gemm(gates * width, self.hidden)
        self._activation(width, self.tokens, backward=False)
        self._gemm(self.hidden, width)
        self.tape.wait(self._tp("reduce_scatter"))
        self._add()

    def _mlp_backward(self, width: int) -> None:
        gates = 2 if self.shape.gated_mlp else 1
        self._gemm_backward(self.hidden, width, before="all_gather", after=None)
        self._activation(width, self.tokens, backward=True)
        self._gemm_backward(gates * width, self.hidden, before=None, after="reduce_scatter")
        self._norm(backward=True)
        self._add()

    def _experts(self, *, backward: bool) -> None:
        """Tokens to their experts and back, in two halves: one travels while the other computes."""
        s, layout = self.shape, self.layout
        tokens = self.tokens // layout.tp if layout.sp else self.tokens
        visits = tokens * (s.experts_per_token or 1)
        width = s.expert_ffn_hidden_size or s.ffn_hidden_size
        gates = (2 if s.gated_mlp else 1) * (2 if backward else 1)
        local = max(1, (s.experts or 1) // layout.ep)
        self._norm(backward=backward)
        router = self.names.plain("fused_topk_with_score_function_forward_kernel", blocks=tokens // 4 or 1)
        self.tape.compute(router, self.gpu.moving_ns(tokens * (s.experts or 1) * 4))
        permute = self.names.plain("_permute_kernel", blocks=tokens)
        back = self.names.plain("_unpermute_kernel", blocks=tokens)
        moving = self.gpu.moving_ns(2 * visits * self.hidden * BF16)
        self.tape.compute(permute, moving)
        halves = 2 if layout.overlap_ep and layout.ep > 1 else 1
        part = visits // halves

        def exchange() -> int | None:
            if layout.ep == 1:
                return None
            size = part * self.hidden * BF16 // layout.ep
            around = [*range(1, layout.ep)]
            peers = [(name, peer) for peer in around for name in ("ncclSend", "ncclRecv")]
            ns = self.group_ns("ep", "all_to_all", size)
            return self.tape.communicate("ep", "all_to_all", size, ns, peers=peers)

        def gemms() -> None:
            rows = max(1, part // local)
            ns = self.gpu.matrix_ns(rows, self.hidden, gates * width, count=local)
            self.tape.compute(self.names.gemm(gates * width, part), ns)
            self._activation(width, part, backward=backward)
            down = self.gpu.matrix_ns(rows, width, self.hidden, count=local * (2 if backward else 1))
            self.tape.compute(self.names.gemm(self.hidden, part), down)

        sent = [exchange() for _ in range(halves)]
        returned = []
        for one in sent:
            self.tape.wait(one)
            gemms()
            returned.append(exchange())
        for one in returned:
            self.tape.wait(one)
        self.tape.compute(back, moving)
        self._add()

    def _mlp(self, layer: int, *, backward: bool) -> None:
        if has_experts(self.shape, layer):
            self._experts(backward=backward)
            if self.shape.shared_expert_ffn_hidden_size:
                mlp = self._mlp_backward if backward else self._mlp_forward
                mlp(self.shape.shared_expert_ffn_hidden_size // self.layout.tp)
            return
        width = self.shape.ffn_hidden_size // self.layout.tp
        if backward:
            self._mlp_backward(width)
        else:
            self._mlp_forward(width)

    def forward(self, layer: int) -> None:
        """All of a layer's forward pass."""
        for module, attention in (("self_attention", self._attention_forward), ("mlp", None)):
            begin = self.tape.open()
            if attention is not None:
                attention()
            else:
                self._mlp(layer, backward=False)
            self.tape.close(f"perfdoc.forward layer={layer} module={module}", begin)

    def backward(self, layer: int) -> None:
        """All of a layer's backward pass."""
        begin = self.tape.open()
        self._mlp(layer, backward=True)
        self.tape.close(f"perfdoc.backward layer={layer} module=mlp", begin)
        begin = self.tape.open()
        self._attention_backward()
        self.tape.close(f"perfdoc.backward layer={layer} module=self_attention", begin)

    # Ends of the model.

    def embedding(self, *, backward: bool) -> None:
        """The table of the first stage."""
        name = "embedding_dense_backward_kernel" if backward else "indexSelectLargeIndex"
        self.tape.compute(self.names.plain(name), self.gpu.moving_ns(2 * self.activation_bytes))

    def output(self, *, backward: bool) -> None:
        """The last norm, the logits and their loss."""
        s = self.shape
        width = s.vocabulary // self.layout.tp
        if backward:
            self._gemm_backward(width, self.hidden, before=None, after="reduce_scatter")
            self._norm(backward=True)
            return
        self._norm(backward=False)
        self.tape.wait(self._tp("all_gather"))
        self._gemm(width, self.hidden)
        kernel = self.names.plain("cross_entropy_forward_kernel", blocks=self.tokens)
        self.tape.compute(kernel, self.gpu.moving_ns(2 * self.tokens * width * BF16))

    def parameters(self, layer: int) -> tuple[int, int]:
        """Of a layer on one rank: (reduced over dp, of experts, reduced over edp)."""
        return layer_parameters(self.shape, layer, tp=self.layout.tp, ep=self.layout.ep)
