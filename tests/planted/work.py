"""The work of a rank of a planted job: passes of micro-batches and their collectives, the optimizer."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from tests.captures.device import DEFAULT_STREAM
from tests.planted.engine import Join, Request
from tests.planted.experts import ExpertLayers
from tests.planted.layered import LayeredModel
from tests.planted.rank import GEMM, LATENCY_NS, NORM, LaidPass, RankLane
from tests.planted.schedule import Pass
from tests.planted.spec import COLLECTIVE_LATENCY_NS

MIB = 2**20
BUCKET_NS = 230_003
"""From when all are there to the end of a bucket of gradients."""
ADAM = "multi_tensor_apply_kernel"
ATTENTION = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"
SEND_RECV = "ncclDevKernel_SendRecv"
_KERNELS = {
    "all_gather": ("ncclDevKernel_AllGather_RING_LL", "ncclAllGather"),
    "reduce_scatter": ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "ncclReduceScatter"),
    "all_reduce": ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclAllReduce"),
    "all_to_all": (SEND_RECV, ""),
    "send_recv": (SEND_RECV, ""),
}
"""Kernel and NCCL call by operation; without a call it is a group of sends and receives."""

_GROUPED = "cutlass_80_tensorop_bf16_s16816gemm_grouped_bf16_256x128_32x3_nn_align8"
_EXCHANGES = {
    "nccl": (SEND_RECV, SEND_RECV),
    "deepep": ("deep_ep::intranode::dispatch<8, 768, 8192>", "deep_ep::intranode::combine<bf16, 8, 768>"),
}
"""Kernels that bring tokens to their experts, and back."""

Laying = Generator[Request, int, None]
"""Something that is laid down and may have to wait for other ranks."""


class RankWork:
    """What one rank does inside a step, pipelines aside."""

    def __init__(self, lane: RankLane) -> None:
        self.lane = lane
        self.spec = lane.spec
        self.calls: dict[int, int] = {}
        """Calls so far by communicator."""
        self.facts: dict[tuple[int, int], tuple[str, str, int]] = {}
        """(dimension, operation, bytes) of each call of a communicator."""
        self.autograd = lane.thread if lane.spec.experts is None else lane.process.thread()

    def lay_pass(self, step: int, what: Pass) -> Laying:
        """Forward or backward of one micro-batch through one chunk."""
        lane, spec = self.lane, self.spec
        opened = lane.host_ns
        lane.host_ns += 200
        duration = spec.backward_ns
        if what.forward:
            duration = spec.forward_ns + (spec.stage_extra_ns[lane.place.stage] if spec.stage_extra_ns else 0)
        if lane.place.stage == spec.pp - 1 and what.chunk == spec.vpp - 1:
            duration += spec.output_ns[0 if what.forward else 1]
        if what.forward:
            for late in spec.lates:
                if late.rank == lane.rank and late.hits(step):
                    duration += late.extra_ns
        duration = spec.computes(duration)
        if what == Pass(forward=False, micro_batch=0, chunk=0):
            gc = spec.gc
            if gc is not None and gc.rank == lane.rank and gc.hits(step):
                lane.hold("gc", gc.extra_ns)
        after_message = lane.last_stream != DEFAULT_STREAM and spec.pp > 1 and spec.vpp == 1
        if spec.model is not None:
            start = yield from self._layers(what, spec.model)
        elif spec.experts is not None:
            lane.launcher = lane.thread if what.forward else self.autograd
            start = yield from self._experts(step, what, spec.experts)
            lane.launcher = lane.thread
        elif spec.buckets and not what.forward and what.micro_batch == spec.micro_batches - 1:
            start = yield from self._reduced_backward(duration)
        else:
            start = lane.compute(duration, gap_ns=spec.pp_handover_ns if after_message else 0)
            lane.norm_alone()
            yield from self._collectives(what.forward)
        lane.passes.append(LaidPass(step=step, what=what, start_ns=start, end_ns=lane.now_ns))
        if spec.micro_batch_ranges:
            lane.range("perfdoc.forward" if what.forward else "perfdoc.backward", opened + 100, lane.host_ns)
            if what.forward:
                lane.range(f"perfdoc.micro_batch {what.micro_batch}", opened, lane.host_ns + 100)
        lane.host_ns += 200

    def _reduced_backward(self, duration_ns: int) -> Generator[Request, int, int]:
        """The last backward pass, each bucket of gradients reduced beside its next part; its start."""
        count = self.spec.buckets
        part = duration_ns // count
        assert part > BUCKET_NS, "a bucket is reduced before the next one is full"
        start = self.lane.compute(part)
        for _ in range(count - 1):
            if "dp" in self.spec.exposed:
                self.lane.compute(part)
            else:
                yield from self.collective("dp", "all_reduce", 16 * MIB, BUCKET_NS, [(GEMM, part)])
        if "dp" not in self.spec.exposed:
            yield from self.collective("dp", "all_reduce", 16 * MIB, BUCKET_NS)
        return start

    def _collectives(self, forward: bool) -> Laying:
        """Of every dimension one that is hidden, wholly or in part, beside a norm, and one that is not."""
        scale = 1 if forward else 2
        computes = self.spec.computes
        contended = (NORM, computes(self.spec.norm_contended_ns))
        groups = self.lane.groups
        if "tp" in groups:
            operation = "all_gather" if forward else "all_reduce"
            yield from self.collective(
                "tp", operation, 6 * MIB, 210_011 * scale, (contended, (GEMM, computes(300_007 * scale)))
            )
            yield from self.collective("tp", "reduce_scatter", 6 * MIB, 120_001 * scale)
        if "cp" in groups:
            attention = (contended, (ATTENTION, computes(240_001 * scale)))
            yield from self.collective("cp", "send_recv", 3 * MIB, 330_017 * scale, attention)
        if "ep" in groups:
            yield from self.collective("ep", "all_to_all", 2 * MIB, 140_009 * scale)
            self.lane.compute(computes(180_007 * scale))
            beside = (contended, (GEMM, computes(260_003 * scale)))
            yield from self.collective("ep", "all_to_all", 2 * MIB, 190_027 * scale, beside)
        if "dp" in groups and self.spec.pp == 1 and not self.spec.buckets:
            operation = "all_gather" if forward else "reduce_scatter"
            beside = (contended, (GEMM, computes(280_001 * scale)))
            yield from self.collective("dp", operation, 16 * MIB, 230_003 * scale, beside)

    def _layers(self, what: Pass, model: LayeredModel) -> Generator[Request, int, int]:
        """A pass of layers; its start."""
        lane, spec = self.lane, self.spec
        share = spec.sequences / spec.tp
        output = lane.place.stage == spec.pp - 1 and what.chunk == spec.vpp - 1
        start = None
        if output and not what.forward:
            start = lane.compute(round(model.output_ns[1] * share))
        for _ in range(model.layers // (spec.pp * spec.vpp)):
            norm = (NORM, round(model.norm_ns * share))
            if what.forward:
                begin = lane.compute(norm[1], name=NORM)
                yield from self._activations("all_gather", model, ())
                lane.compute(round(model.forward_ns * share))
                yield from self._activations("reduce_scatter", model, ())
            else:
                half = (GEMM, round(model.backward_ns * share / 2))
                begin = lane.now_ns
                yield from self._activations("all_gather", model, (half,))
                yield from self._activations("reduce_scatter", model, (half,))
                lane.compute(norm[1], name=NORM)
            start = begin if start is None else start
        if output and what.forward:
            lane.compute(round(model.output_ns[0] * share))
        assert start is not None
        return start

    def _experts(self, step: int, what: Pass, experts: ExpertLayers) -> Generator[Request, int, int]:
        """A pass of layers of experts; its start. Backward undoes forward: tokens first come from behind."""
        lane, group = self.lane, self.lane.groups["ep"]
        times = dict(experts.slow).get(lane.rank, 1.0) * (1 if what.forward else 2)
        where = step, lane.place.stage, what.micro_batch, what.chunk
        length = experts.length(step, what.micro_batch, lane.groups["dp"].ranks.index(lane.rank))
        of_group = [
            experts.length(step, what.micro_batch, lane.groups["dp"].ranks.index(r)) for r in group.ranks
        ]
        mean = sum(of_group) / len(of_group)
        start = None
        for layer in range(experts.layers):
            load = experts.load(len(group.ranks), group.ranks.index(lane.rank), *where, layer, group.ranks[0])
            attention, dense = (round(t * times * length) for t in (experts.attention_ns, experts.dense_ns))
            products = round(experts.experts_ns * times * load * mean)
            names = _EXCHANGES[experts.exchange]
            if what.forward:
                begin = lane.compute(attention, name=ATTENTION)
                lane.compute(dense)
            else:
                begin = None
            begin_exchange = yield from self._exchange(names[0], experts.dispatch_ns)
            lane.compute(products // 2, name=_GROUPED if experts.grouped else GEMM)
            lane.compute(products - products // 2, name=_GROUPED if experts.grouped else GEMM)
            yield from self._exchange(names[1], experts.combine_ns)
            if not what.forward:
                lane.compute(dense)
                lane.compute(attention, name=ATTENTION)
            start = start if start is not None else begin if begin is not None else begin_exchange
        assert start is not None
        return start

    def _exchange(self, name: str, transfer_ns: int) -> Generator[Request, int, int]:
        """Tokens among the ranks of a group; its start."""
        lane, group = self.lane, self.lane.groups["ep"]
        lane.order_streams(DEFAULT_STREAM, group.stream)
        if name == SEND_RECV:
            me = group.ranks.index(lane.rank)
            around = group.ranks[me + 1 :] + group.ranks[:me]
            peers = tuple((call, peer) for peer in around for call in ("ncclSend", "ncclRecv"))
            launch, returned = lane.call_nccl("", group, 2 * MIB, peers)
        else:
            launch, returned = lane.launch()
        start = max(lane.now_ns, returned + LATENCY_NS)
        key = group.communicator, self.calls.get(group.communicator, 0)
        self.calls[group.communicator] = key[1] + 1
        self.facts[key] = "ep", "all_to_all", 2 * MIB
        end = yield Join(key=key, rank=lane.rank, ranks=group.ranks, start_ns=start, transfer_ns=transfer_ns)
        lane.communication(name, "ep", start, end, group.stream, launch)
        lane.idle_until(start, returned, group.stream)
        lane.order_streams(group.stream, DEFAULT_STREAM, end)
        lane.stretch("comm.ep", end)
        lane.last_stream = group.stream
        return start

    def _activations(self, operation: str, model: LayeredModel, beside: Sequence[tuple[str, int]]) -> Laying:
        tp = self.spec.tp
        if tp == 1:
            for name, duration in beside:
                self.lane.compute(duration, name=name)
            return
        part = model.activation_bytes * self.spec.sequences // tp
        took = model.transfer_ns(part * (tp - 1), self.lane.groups["tp"].ranks)
        yield from self.collective("tp", operation, part, took, beside)

    def _replicas(
        self, operation: str, model: LayeredModel, times: int, beside: Sequence[tuple[str, int]]
    ) -> Laying:
        spec, ranks = self.spec, self.lane.groups["dp"].ranks
        part = times * model.weight_bytes // (spec.tp * spec.pp * len(ranks))
        yield from self.collective(
            "dp", operation, part, model.transfer_ns(part * (len(ranks) - 1), ranks), beside
        )

    def optimizer(self) -> Laying:
        """Gradients reduced over dp, their norm over the model's ranks, the update beside a gather."""
        sharded = "dp" in self.lane.groups and not self.spec.buckets
        model = self.spec.model
        for _ in range(self.spec.buckets if "dp" in self.spec.exposed else 0):
            yield from self.collective("dp", "all_reduce", 16 * MIB, BUCKET_NS)
        if sharded and model is not None:
            yield from self._replicas("reduce_scatter", model, 2, ())
        elif sharded:
            yield from self.collective("dp", "reduce_scatter", 48 * MIB, 410_009)
        if "other" in self.lane.groups:
            yield from self.collective("other", "all_reduce", 4, COLLECTIVE_LATENCY_NS)
        update = [(ADAM, 90_001 + 311 * i) for i in range(4)]
        if sharded and model is not None:
            yield from self._replicas("all_gather", model, 1, update)
        elif sharded:
            yield from self.collective("dp", "all_gather", 24 * MIB, 300_007, update)
        else:
            for name, duration in update:
                self.lane.compute(duration, name=name)

    def collective(
        self,
        dimension: str,
        operation: str,
        size_bytes: int,
        transfer_ns: int,
        beside: Sequence[tuple[str, int]] = (),
    ) -> Laying:
        """A collective over a group with kernels beside it; compute goes on when both are done."""
        lane, group = self.lane, self.lane.groups[dimension]
        if dimension in ("dp", "other"):
            took = transfer_ns * self.spec.dp_factor
        else:
            sized = (transfer_ns - COLLECTIVE_LATENCY_NS) * self.spec.size_factor
            took = (COLLECTIVE_LATENCY_NS + sized) * self.spec.transfer_factor
        transfer_ns = self.spec.slowed(took, group.ranks, dimension)
        kernel, call = _KERNELS[operation]
        lane.order_streams(DEFAULT_STREAM, group.stream)
        me = group.ranks.index(lane.rank)
        around = group.ranks[me + 1 :] + group.ranks[:me]
        peers: tuple[tuple[str, int], ...] = ()
        if operation == "all_to_all":
            peers = tuple((name, peer) for peer in around for name in ("ncclSend", "ncclRecv"))
        elif operation == "send_recv":
            peers = (("ncclSend", around[0]), ("ncclRecv", around[-1]))
        launch, returned = lane.call_nccl(call, group, size_bytes, peers)
        start = max(lane.now_ns, returned + LATENCY_NS)
        key = group.communicator, self.calls.get(group.communicator, 0)
        self.calls[group.communicator] = key[1] + 1
        self.facts[key] = dimension, operation, size_bytes * max(1, len(peers))
        end = yield Join(key=key, rank=lane.rank, ranks=group.ranks, start_ns=start, transfer_ns=transfer_ns)
        lane.communication(kernel, dimension, start, end, group.stream, launch)
        exposed = dimension in self.spec.exposed
        if not beside or exposed:
            lane.idle_until(start, returned, group.stream)
        for name, duration in () if exposed else beside:
            free = lane.now_ns
            begin = lane.compute(duration, name=name)
            on_time = begin == free or self.spec.model is not None
            assert on_time, "the host fell behind: what should run beside communication started late"
            if name == NORM:
                lane.norms.append((begin, begin + duration))
        lane.order_streams(group.stream, DEFAULT_STREAM, end)
        if end > lane.now_ns:
            lane.stretch(f"comm.{dimension}", end)
            lane.last_stream = group.stream
        for name, duration in beside if exposed else ():
            # With nothing beside it a norm takes what it takes alone.
            if name == NORM:
                lane.norm_alone()
            else:
                lane.compute(duration, name=name)
