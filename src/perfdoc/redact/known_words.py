"""The words that stay in the names of ranges: of training in general, of PyTorch, NCCL, Megatron and perfdoc.

A word that is not here is replaced. In lower case; words of one letter need not be here.
"""

from __future__ import annotations

KNOWN_WORDS = frozenset(
    """
abort abs accelerate accumulate accumulategrad activation adagrad adam adamw adaptive add addcdiv addcmul
addmm adjust after alias all all2all allgather allocation allreduce alltoall amp and annotate any apex api
arange arch argmax as async asynchronous at aten attention attn auto autocast autograd avg awaitable
backward baddbmm bag barrier base batch batches batchnorm before begin bench benchmark bernoulli bfloat
bias bilinear binary bincount bitsandbytes bitwise block blocks bmm bool bounds bprop broadcast bucket
buckets bwd by byte bytes c caffe calc calculation capture cast cat causal ceil char check checkpoint
checkpointed checkpointing chunk clamp clip clipping clone close coalesce coalesced codegen col2im collect
collection collnet column combine comm comms commsplit communication communicator compile compiled
compiler complete complex computation compute computing concat conj constant context contiguous conv
conversion convolution cooldown copy core cos count cp cpp cpu cross cu cublas cublaslt cuda cudagraph
cudagraphs cudnn cumsum cutlass data dataloader dataset ddp decoder deepspeed default delta dense
deregister destroy detach device dgrad dim dispatch dispatcher dist distributed div divide dot double down
dp driver dropout during dynamo each efficient einsum elu emb embed embedding embeddings empty encoder end
engine entropy enumerate ep epoch epochs eq erf eval evaluate evaluation event events exchange exp expand
expert experts expm1 false fast fbgemm fc feed fetch ffn fill final finalize finite flash flashattn flat
flatten flip float floor fmod fold for foreach forward fprop free fresh from fsdp full fully func function
fused fwd garbage gate gated gather gc ge geglu gelu gemm gemms generation generator get global gloo glu
gpu gqa grad gradient gradients grads graph graphs grid group grouped groupnorm gt half handler hardtanh
head heads heartbeat hierarchical hip hipblaslt hook hooks host hot hpu hsdp hybrid hydra id ids im2col
impl in index indices inductor inf inference init initialize inner input inputs instance int inter
interleaved internal interpolate intra is isfinite isinf isnan issue item iter iteration iterations
iterator iters jit kernel kernels key keys kron l lamb launch launcher layer layernorm layers le leaky
lengths lerp lift lightning like linear lion list lm ln load loader loading local log log1p logical logit
logits long lookup loop loss losses lr lt main malloc mask masked master matmul max maximum mean measure
megatron memcpy memory memset mesh message mha micro microbatch min mini minimum miopen mixed mixture mkl
mkldnn mla mlp mm mode model module modules moe mpi mps mqa mse mul multi multihead multiply muon nan
narrow native nccl nd ne neg new next nll nn no node none nonzero noop norm normal norms not num numpy
nvls nvte nvtx of offsets old on one onednn ones op open operation optim optimiser optimizer or out outer
output outputs over overlap pack packed pad parallel parallelism param parameter parameters params part
partial pass peer per permutation permute pg phase pin pinned pipe pipeline pixel poll pool pooled pooling
pos position positional post postprocess pow pp pre prefetch preprocess process processing product profile
profiler profiling proj projection pt put py python qint qkv query queue random range rank ranks receive
reciprocal recompute recomputed record recv reduce reducer reducescatter reduction reforward region
register relu remainder repeat replay replicate reshape reshard residual resize resolve restore result
results ring rms rmsnorm rocm roll root rope rotary round route routed router routing row rsqrt rsub run
runtime sampler save scalar scale scaled scaler scaling scatter schedule scheduler scheduling score scores
sdpa section select selective self send sent seq sequence set setup sgd shape shapes shard sharded shared
short shuffle sigmoid sign silu sin single size sizes slice slow smooth softmax softplus sort sp sparse
split splits sqrt squeeze stack stage start std steady step steps stop stream streams stride strided sub
subtract sum swi swiglu sync synchronise synchronize table tables tanh te tensor tensors test the thread
threads threshold timer timers to token tokens top topk torch total tp train trainer training transformer
transpose triangular tril triton triu true type ub uint unbind unembed unflatten unfold uniform unpack
unpermute unsafe unscale unshard unsqueeze up update upsample user userbuffers validation value values var
view vocab vocabulary vp vpp wait warm warmup watchdog weight weights wgrad where window with word worker
workers world wrapped xformers xla zero zeros
""".split()
)
