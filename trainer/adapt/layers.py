"""Layers for runs without Transformer Engine: norms, and core attention through torch's fused function.

Call site: megatron-core's `WrappedTorchNorm` asserts that sequence parallelism is off. With it on, the
weight's
gradient is summed over the tensor-parallel group (distributed/finalize_model_grads.py) for parameters that
carry `sequence_parallel`, and that mark is all that is missing.

Call site: megatron-core's `DotProductAttention` materialises the scores and asserts that context parallelism
is
off. Here keys and values are gathered over the context-parallel group (the gradient is reduce-scattered) and
masked by their positions: rank r of c holds the chunks r and 2c-1-r of the sequence's 2c chunks
(`get_batch_on_this_cp_rank`), so that every rank has the same share of the causal triangle.
"""

import math
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule


class Norm:
    """Builds torch's RMSNorm or LayerNorm over the hidden size, its parameters marked."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> Any:
        """The signature that megatron-core's specs call; `kwargs` holds what only fused norms use."""
        del kwargs
        kinds = {"RMSNorm": torch.nn.RMSNorm, "LayerNorm": torch.nn.LayerNorm}
        made = {"eps": eps, "dtype": config.params_dtype, "device": torch.cuda.current_device()}
        norm = kinds[config.normalization](hidden_size, **made)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


def zigzag_positions(rank: int, size: int, local_length: int) -> torch.Tensor:
    """Positions in the whole sequence of the tokens that a context-parallel rank holds.

    Two ranks, four local tokens, chunks of two: rank 0 holds 0, 1, 6, 7 and rank 1 holds 2, 3, 4, 5.
    """
    chunk = local_length // 2
    within = torch.arange(chunk)
    return torch.cat([within + rank * chunk, within + (2 * size - 1 - rank) * chunk])


class CoreAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention over `[sequence, batch, heads, width]`; grouped queries are not expanded."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        **kwargs: Any,
    ) -> None:
        del layer_number, attn_mask_type, attention_type, cp_comm_type, kwargs
        super().__init__(config=config)
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
        self.cp_group = groups.cp
        self.cp_size = self.cp_group.size()
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self._mask: torch.Tensor | None = None

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Any = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        """Query `[s, b, heads, width]`, key and value `[s, b, groups, width]` → `[s, b, heads * width]`."""
        del attention_mask, attn_mask_type
        if packed_seq_params is not None or attention_bias is not None:
            raise ValueError("packed sequences and attention biases need Transformer Engine")
        mask = None
        if self.cp_size > 1:
            mask = self._zigzag_mask(query.shape[0], query.device)
            key = gather_from_sequence_parallel_region(key, group=self.cp_group)
            value = gather_from_sequence_parallel_region(value, group=self.cp_group)
        dropout = self.dropout if self.training else 0.0
        if dropout > 0.0 and not self.config.sequence_parallel:
            with get_cuda_rng_tracker().fork():
                context = self._attend(query, key, value, mask, dropout)
        else:
            context = self._attend(query, key, value, mask, dropout)
        return context.permute(2, 0, 1, 3).flatten(2)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float,
    ) -> torch.Tensor:
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        grouped = q.shape[1] != k.shape[1]
        # PyTorch's fused kernels for CUDA take grouped queries in 16 bits and without a mask; for others it
        # keeps the scores, which is another program.
        if grouped and q.is_cuda and mask is not None:
            k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
        elif grouped and q.is_cuda and q.dtype == torch.float32:
            q, k, v = (tensor.to(torch.bfloat16) for tensor in (q, k, v))
        context = torch.nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return context.to(query.dtype)

    def _zigzag_mask(self, local_length: int, device: torch.device) -> torch.Tensor:
        """True where a query of this rank may see a gathered key; `[local, local * cp_size]`."""
        if self._mask is None or self._mask.shape[0] != local_length:
            own = zigzag_positions(self.cp_group.rank(), self.cp_size, local_length)
            gathered = torch.cat(
                [zigzag_positions(rank, self.cp_size, local_length) for rank in range(self.cp_size)]
            )
            self._mask = (gathered[None, :] <= own[:, None]).to(device)
        return self._mask
