"""Tensor parallelism in place of data parallelism: every rank has a part of each layer and all of the batch.

With n ranks each computes n times as many passes of 1 / n of the width: the same arithmetic, but n times what
a pass costs whatever its width. Gradients and weights are no longer exchanged; instead every layer of every
pass reduces its activations twice, and every pass those at its end and the loss, and waits for it.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.replay.edits.edit import Edit, with_durations
from perfdoc.simulator.replay.edits.latency import line_of
from perfdoc.simulator.replay.edits.micro_batches import in_pass, scaled_passes
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt

_UNCERTAINTY_FRAC = 0.5
"""Narrow matrix products use a device worse; norms and what else is not split are done n times as often; and
an all-reduce is taken to move twice what the capture's messages of the same size do."""
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
_REDUCTIONS_PER_LAYER = 2
_AT_THE_END = 1
"""Of a pass: the embedding's output in the forward, the output layer's input gradient in the backward."""
_OF_THE_LOSS = 3
"""In the forward, over the parts of the vocabulary: the largest logit, the right one, the sum; a number for
each token, so all latency."""


def tensor_instead_of_data() -> Edit:
    """dp = n, tp = 1 to dp = 1, tp = n, the micro-batch's size and the global batch as they are."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        facts = rebuilt.ranks[0].facts
        if facts.model is None or facts.dp is None:
            raise ValueError("the model and the layout are not known: give them with --config or --set")
        if facts.dp < 2 or (facts.tp, facts.pp) != (1, 1):
            raise ValueError("the layout is not data parallelism alone")
        if not all(len(r.passes) for r in rebuilt.ranks):
            raise ValueError("no range of the capture shows the passes of micro-batches")
        latency_ns, ns_per_byte = line_of(rebuilt, "dp")
        size = _activation_bytes(rebuilt.ranks[0])
        reduction_ns = latency_ns + 2 * ns_per_byte * size
        of_pass = facts.model.layers * _REDUCTIONS_PER_LAYER + _AT_THE_END
        made = scaled_passes(rebuilt, float(facts.dp))
        graph = made.graph
        duration = graph.duration_ns.copy()
        exchanged = (graph.kind == TaskKind.COMMUNICATION) & (made.dimension == DIMENSIONS.index("dp"))
        duration[exchanged] = 0
        inside = np.flatnonzero(in_pass(made) & (graph.kind == TaskKind.COMPUTE))
        for i, frame in enumerate(made.ranks):
            mine = inside[graph.rank[inside] == i]
            at = frame.passes.at(made.launch_ns[mine])
            # The first computation of every pass stands for its reductions too.
            which, first = np.unique(at, return_index=True)
            loss_ns = np.where(frame.passes.is_forward[which], _OF_THE_LOSS * latency_ns, 0.0)
            duration[mine[first]] += np.round((of_pass * reduction_ns + loss_ns) * facts.dp).astype(np.int64)
        return with_durations(made, duration)

    return Edit(
        name="tensor parallelism in place of data parallelism",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("exposed_comm", "compute", "idle"),
        assumptions=(
            "matrix products of 1 / n of the width take 1 / n of the time",
            "an all-reduce of activations takes the latency and twice the time per byte of the dp messages",
            "every rank waits for each reduction",
        ),
        may_cost=True,
    )


def _activation_bytes(frame: RankFrame) -> int:
    """Of one micro-batch between two layers."""
    facts = frame.facts
    model, sequences, length = facts.model, facts.micro_batch_sequences, facts.sequence_length
    width = _BYTES.get(facts.dtype or "", 0)
    if model is None or sequences is None or length is None or not width:
        raise ValueError("micro-batch size, sequence length and dtype are not known: give them with --set")
    return sequences * length * model.hidden_size * width
