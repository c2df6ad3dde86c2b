"""Overrides of the configuration `tiny` that several tests start from."""

PLAIN = [
    "data_parallel_size=null",
    "overlap_grad_reduce=false",
    "overlap_param_gather=false",
    "bucket_size=null",
    "micro_batch_size=1",
    "global_batch_size=8",
]
TP2 = ["tensor_model_parallel_size=2"]
PP2 = ["pipeline_model_parallel_size=2"]
VPP2 = ["virtual_pipeline_model_parallel_size=2", "overlap_p2p_comm=true"]
EXPERTS = ["num_moe_experts=4"]
FSDP2 = [
    "use_torch_fsdp2=true",
    "use_distributed_optimizer=false",
    "untie_embeddings_and_output_weights=true",
]
KERNELS = ("transformer_engine", "fused_weight_gradient_mlp_cuda", "deep_ep", "einops")
"""Packages of a machine on which a test pretends to run."""
