"""The table that says what a kernel computes, in order: the first row that matches wins.

From the most telling names (generated code, namespaces, library prefixes) to plain words in the
function's name. Communication comes from collective_names. Choices that a reader may want to know:

- batch normalisation of CNNs is NORM; pooling and cuDNN's offset helpers are CONVOLUTION, its layout
  changes COPY;
- a type cast is COPY, but QUANTISATION when it casts to 8 bits;
- a kernel of torch.compile is NORM, LOSS or SOFTMAX only where its fused names say so, else
  ELEMENTWISE or REDUCTION;
- norm with quantisation is NORM, activation with quantisation QUANTISATION;
- a matrix multiplication is GEMM whatever else the same kernel does, convolution apart;
- foreach kernels are OPTIMIZER unless they copy: that is where training uses them.
"""

from __future__ import annotations

from perfdoc.analyzers.kernel_class.collectives import NAMED_COMMUNICATION, WORDED_COMMUNICATION
from perfdoc.analyzers.kernel_class.masked_softmax import MASKED_SOFTMAX
from perfdoc.analyzers.kernel_class.masked_softmax import NAMES as MASKED_SOFTMAX_NAMES
from perfdoc.analyzers.kernel_class.rules import AT, KernelRule, rule
from perfdoc.analyzers.kernel_class.rules import KernelClass as K

_CUTLASS = r"(?i)cutlass\w*::(?:device_kernel|Kernel2?)$"
_CK_TILE = AT + r"kentry\w*$"
_ELEMENTWISE = AT + r"(?:vectorized_|unrolled_|legacy_|templated_)*elementwise_kernel\w*$"
_FOREACH = AT + r"multi_tensor_apply_kernel$"
_SOFTMAX = AT + r"(?:cunn_\w*[Ss]oft[Mm]ax\w*|softmax_warp_\w+|host_softmax\w*)$"
_THRUST = r"\b(?:thrust|cub)::(?:\w+::)*(?:_kernel_agent|static_kernel|DeviceFor\w*|transform_kernel)$"
_MOVES = (
    r"^triton_poi_fused(?:_(?:_to_copy|_unsafe_view|clone|copy_?|cat|stack|view|t|transpose|permute|split"
    r"|slice|select|expand|unsqueeze|squeeze|new_zeros|zeros|zeros_like|ones|full|fill|constant_pad_nd))+_\d+$"
)

GENERATED: tuple[KernelRule, ...] = (
    rule("inductor_attention", K.ATTENTION, r"^triton_tem_\w*attention"),
    rule("inductor_convolution", K.CONVOLUTION, r"^triton_tem_\w*convolution"),
    rule("inductor_gemm", K.GEMM, r"^triton_(?:tem_|mm|bmm|addmm|gemm)"),
    rule(
        "inductor_norm",
        K.NORM,
        r"^triton_(?:red|per)_fused_\w*(?:rms_?norm|layer_?norm|group_?norm|batch_?norm)",
    ),
    rule("inductor_loss", K.LOSS, r"^triton_(?:red|per)_fused_\w*(?:nll_loss|cross_entropy|log_softmax)"),
    rule("inductor_softmax", K.SOFTMAX, r"^triton_(?:red|per)_fused_\w*softmax|^triton_softmax_"),
    rule("inductor_embedding", K.EMBEDDING, r"^triton_poi_fused_embedding_\d+$"),
    rule("inductor_copy", K.COPY, _MOVES),
    rule("inductor_reduction", K.REDUCTION, r"^triton_(?:red|per)_"),
    rule("inductor_scan", K.SORT, r"^triton_spl_"),
    rule("inductor_foreach", K.OPTIMIZER, r"^triton_for_"),
    rule("inductor_pointwise", K.ELEMENTWISE, r"^triton_(?:poi|unk)_"),
    rule("nvfuser_reduction", K.REDUCTION, r"^nvfuser_(?:inner|outer|reduction)"),
    rule("nvfuser", K.ELEMENTWISE, r"^nvfuser_"),
    rule("xla_gemm", K.GEMM, r"^gemm_fusion|^cublas_fusion"),
    rule("xla_reduction", K.REDUCTION, r"^(?:input_)?\w*reduce_fusion(?:_\d+)?$|^wrapped_reduce"),
    rule("xla_copy", K.COPY, r"^(?:wrapped_|loop_|input_)?(?:copy|transpose|concatenate)_fusion(?:_\d+)?$"),
    rule("xla_fusion", K.ELEMENTWISE, r"^(?:(?:loop|input)_\w*)?fusion(?:_\d+)?$|^wrapped_\w+$"),
)
"""Kernels that a compiler named."""

LIBRARIES: tuple[KernelRule, ...] = (
    rule(
        "kv_cache_copy",
        K.COPY,
        r"(?i)(?:reshape|concat)_and_cache|(?:copy|store|set|write|append|gather)_(?:to_)?(?:paged_)?kv_?cache|_copy_page|copy_blocks",
    ),
    rule("cublas_epilogue", K.GEMM, r"epilogue::impl::"),
    # Attention before cuDNN, CUTLASS and convolution, whose words it shares.
    rule("cutlass_attention", K.ATTENTION, _CUTLASS, r"(?i)fmha|\bflash|attention|attn"),
    rule("ck_tile_attention", K.ATTENTION, _CK_TILE, r"(?i)fmha"),
    rule("ck_tile_norm", K.NORM, _CK_TILE, r"(?i)layer_?norm|rms_?norm"),
    rule("ck_tile_gemm", K.GEMM, _CK_TILE, r"(?i)gemm"),
    rule("cudnn_attention_helper", K.ATTENTION, r"\bcudnn::fusion::"),
    rule(MASKED_SOFTMAX, K.ATTENTION, MASKED_SOFTMAX_NAMES),
    rule("rotary", K.ELEMENTWISE, r"(?i)rotary|(?<![a-z])rope(?![a-z])"),
    rule(
        "attention",
        K.ATTENTION,
        r"(?i)flash_?(?:fwd|bwd|attn|attention|mla)|\bflash::|fmha|sdpa|attention|attn|(?<![a-z])mha(?![a-z])"
        r"|(?:Batch|Single)(?:Prefill|Decode)|PagedKV|MergeStates?Kernel|(?<![a-z])xqa|splitkv_mla|bwd_kernel_d[kq]",
    ),
    rule("context_parallel_helper", K.ATTENTION, AT + r"thd_\w+$"),
    rule(
        "sequence_mixer",
        K.ATTENTION,
        r"(?i)chunk_(?:scan|state|cumsum|fwd|bwd|gated)|bmm_chunk|selective_scan|delta_rule|fused_recurrent"
        r"|state_passing|chunk_(?:local|scaled)|recompute_w_u|wy_repr|solve_tril|(?<![a-z])wkv\d?(?![a-z])",
    ),
    # Recommendation models.
    rule(
        "embedding_table",
        K.EMBEDDING,
        r"split_embedding|embedding_codegen|permute_pooled_embs|recat_\w*kernel|bounds_check_indices"
        r"|linearize_index|fbgemm_gpu::(?:\w+::)*\w*(?:permute_|offsets_range|jagged|lengths|dense|index)",
    ),
    rule("sparse_to_dense", K.EMBEDDING, r"to_dense_representation"),
    # Convolution before GEMM: implicit GEMM is how it computes.
    rule("cudnn_layout", K.COPY, r"(?i)nchw_?to_?nhwc|nhwc_?to_?nchw|nchwAddPadding|nhwcAddPadding"),
    rule("cutlass_convolution", K.CONVOLUTION, _CUTLASS, r"(?:dgrad|wgrad|fprop)_|ImplicitGemmConv|\bconv::"),
    rule("cudnn_cutlass", K.CONVOLUTION, r"cutlass\w*_cudnn\w*::|\bcask\w*_cudnn\w*::|\bcask_cudnn"),
    rule(
        "convolution",
        K.CONVOLUTION,
        r"(?i)implicit_(?:gemm|convolve)|explicit_convolve|winograd|scudnn|s\d+cudnn|(?<![a-z])conv(?:\dd|olution)"
        r"|(?:grouped|naive|miopen\w*)_?conv|sp3AsmConv|igemm_(?:fwd|bwd|wrw)|conv_?depthwise|(?:dgrad|wgrad|fprop)(?:\dd)?_(?:engine|alg|implicit|optimized|nchw|nhwc)"
        r"|im2col|col2im|vol2col|\bcudnn::(?:cnn|detail)::|fft2d_(?:r2c|c2r)",
    ),
    rule("pooling", K.CONVOLUTION, r"(?i)(?:max|avg|average|adaptive)_?pool|\bcudnn::pooling"),
    *WORDED_COMMUNICATION,
    rule(
        "gemm",
        K.GEMM,
        r"(?i)(?:gemm|gemv|matmul|splitk_?reduce|split_k_reduce|nvjet|xmma|tensorop|marlin|machete)[^:]*$"
        r"|\bgemvx::kernel$|(?:^|::|_)(?:b|add|grouped_|scaled_)?mm_[^:]*$|fused_moe_kernel|(?:^|::)_?fused_moe$"
        r"|\bdeep_gemm::|\bcublas(?:Lt)?::|(?:^|_)(?:gmm|tgmm)(?:_|$)|mul_mat_(?:vec|q|f)",
    ),
    rule("gemm_amd", K.GEMM, AT + r"Cijk_"),
    rule("cublas_dot", K.GEMM, AT + r"(?:dot_kernel|reduce_1Block_kernel|scal_kernel\w*|trsm\w*|syrk\w*)$"),
    rule("cutlass", K.GEMM, _CUTLASS),
    # Routing before top-k, loss and copies, whose words it shares.
    rule("moe_activation", K.ELEMENTWISE, r"\bmoe::dev::activation::|(?i:moe\w*activation)"),
    rule(
        "moe_routing",
        K.MOE_ROUTING,
        r"(?i)(?<![a-z])moe(?![a-z])|(?-i:moe[A-Z]|Moe|MoE)|expert|topk_?gating|grouped_topk|expand_?input_?rows"
        r"|routing_?(?:indices|map|histogram|renorm)|row_id_map|sort_chunks|chunk_sort_map"
        r"|(?:^|::)_?(?:un)?permute_(?:kernel|with_mask)|topk_with_score|aux_loss|restripe_prob|multihot"
        r"|top2_sum_gate|get_fused_mapping|(?:expand_to|reduce)_fused_",
    ),
    rule(
        "norm",
        K.NORM,
        r"(?i)(?:layer|rms|group|batch|instance|weight|qk)_?norm|(?<![a-z])ln_(?:fwd|bwd|parallel)|gammabeta"
        r"|rowwisemoments|(?<![a-z])bn_(?:fw|bw)|cuApply\w*norm|cuCompute\w*GradInput|ComputeInternalGradients"
        r"|FusedParamsCUDAKernel|(?<![a-z])l2norm_(?:fwd|bwd)|(?<![a-z])norm_(?:fwd|bwd)(?![a-z])",
    ),
    # Optimiser: clipping apart from the update, since they overlap with different things.
    rule("foreach_copy", K.COPY, _FOREACH, r"::Copy<|CopyFunctor"),
    rule("foreach_scale_inverse", K.QUANTISATION, _FOREACH, r"ScaleAndScaleInv"),
    rule("optimizer_clip_grad", K.OPTIMIZER, _FOREACH, r"L2Norm|LpNorm|MaxNorm"),
    rule("optimizer_update", K.OPTIMIZER, _FOREACH, r"Adam|SGD|Sgd|LAMB|Lamb(?!d)|Adagrad|Lion|Novo[gG]rad"),
    rule("optimizer_scale", K.OPTIMIZER, _FOREACH, r"\bScale(?:Ptr)?Functor|Axpby|amp_\w*unscale"),
    rule("optimizer_foreach", K.OPTIMIZER, _FOREACH),
    rule(
        "optimizer_clip_grad", K.OPTIMIZER, r"(?i)lpnorm_cleanup|clip_grad|grad_?clip|grad_?norm|amp_unscale"
    ),
    rule("optimizer_clip_grad", K.OPTIMIZER, AT + r"cleanup(?:_v\d)?$", r"cleanup(?:_v\d)?\(float ?\*"),
    rule(
        "optimizer_update",
        K.OPTIMIZER,
        r"(?i)(?<![a-z])(?:fused_?)?(?:adamw?|lamb|sgd|adagrad|adafactor|lion|muon|novograd)(?![a-z])"
        r"|kOptimizer|kPreconditionOptimizer|optimizer|newton_?schulz|FusedAdam|AdamKernel",
    ),
)
"""Kernels of known libraries, and words that are specific enough to come early."""

FRAMEWORK: tuple[KernelRule, ...] = (
    rule("torch_cast_to_8_bits", K.QUANTISATION, _ELEMENTWISE, r"float8\w*copy_kernel"),
    rule("torch_copy", K.COPY, _ELEMENTWISE, r"copy_kernel_cuda|copy_device_to_device"),
    rule("torch_fill", K.COPY, _ELEMENTWISE, r"\bFillFunctor"),
    rule("torch_elementwise", K.ELEMENTWISE, _ELEMENTWISE),
    rule("torch_reduction", K.REDUCTION, AT + r"reduce_kernel$"),
    rule("log_softmax", K.LOSS, _SOFTMAX, r"LogSoft[Mm]ax"),
    # The fifth template parameter of the warp kernel is is_log_softmax.
    rule(
        "log_softmax", K.LOSS, _SOFTMAX, r"softmax_warp_\w+<[^<>]{1,200}, (?:\(int\))?\d+, (?:\(bool\)1|true)"
    ),
    rule(
        "random", K.RANDOM, r"(?i)distribution_\w*kernel|dropout|philox|curand|randperm|bernoulli|multinomial"
    ),
    rule("sampling", K.RANDOM, r"(?i)sampling|sample_?(?:token|kernel)"),
    rule("thrust_sort", K.SORT, _THRUST, r"(?i)sort|merge|scan|unique|partition|copy_if|ReduceByKey|set_op"),
    rule("thrust_reduction", K.REDUCTION, _THRUST, r"__reduce|Reduce"),
    rule("thrust_for_each", K.ELEMENTWISE, _THRUST),
    rule("cub_reduction", K.REDUCTION, r"\bcub::(?:\w+::)*Device(?:Segmented)?Reduce(?!ByKey)\w*$"),
    rule(
        "sort",
        K.SORT,
        r"(?i)\b(?:cub|at_cuda_detail)::(?:\w+::)*device\w+$|(?<!arg)top_?k|radix|sort|(?<![a-z])scan(?![a-z])|scan_(?:inner|outer)"
        r"|cumsum|cumprod|searchsorted|histogram|unique|nonzero|write_indices|flag_kernel",
    ),
    rule(
        "loss",
        K.LOSS,
        r"(?i)nll_?loss|NLLCriterion|cross_?entropy|log_?softmax|kl_?div|(?:^|_)loss(?:_|$)|ctc_",
    ),
    rule("softmax", K.SOFTMAX, r"(?i)softmax"),
    rule(
        "embedding",
        K.EMBEDDING,
        r"(?i)embedding|index_?select|index_elementwise|index_?func|indexing_backward|scatter|gather|index_(?:put|add)"
        r"|compute_grad_weight|krn_partial|partial_segments|index_(?:kernel|copy|fill)",
    ),
)
"""Kernels that PyTorch brings along."""

WORDS: tuple[KernelRule, ...] = (
    rule("cast_to_8_bits", K.QUANTISATION, AT + r"unary_kernel$", r"(?i)fp8"),
    rule(
        "quantisation",
        K.QUANTISATION,
        r"(?i)quant(?!il|um)|cast_transpose|cast_mxfp|cast_fp8|cast_to_fp|mxfp[468]|nvfp[468]|(?<![a-z])amax|swizzle\w*scal"
        r"|scaling_kernel|scale_inv|delayed_scaling|cvt_\w*fp[48]|fp8_(?:cast|transpose|block)|hadamard",
    ),
    rule(
        "copy",
        K.COPY,
        r"(?i)CatArray|copy|memcpy|memset|(?<![a-z])(?:fill|cat|concat|roll|flip|pad|padding|zero)(?![a-z])|fillbuffer"
        r"|transpose|split_with_sizes|chunk_cat|concatenate|nccl_?one_?rank|oneRankReduce|replication_pad"
        r"|reflection_pad|(?:un)?pack_(?:kernel|tensor)|(?<![a-z])to_contiguous",
    ),
    rule(
        "elementwise",
        K.ELEMENTWISE,
        r"(?i)elem(?:ent)?_?wise|pointwise|gelu|silu|swiglu|geglu|relu|sigmoid|(?<![a-z])tanh|act_and_mul|activation"
        r"|gated_act|(?<![a-z])(?:bias|residual|axpy|axpby|add|mul|div|sub|scale|mask|masked|clamp|where|tril|triu)"
        r"(?![a-z])|triu_tril|arange|linspace|scalePackedTensor|upsample|interpolate|op_tensor|bias_?add|unary_(?:grad_)?kernel",
    ),
    rule(
        "reduction",
        K.REDUCTION,
        r"(?i)reduc(?:e|tion)|nrm2_kernel|asum_kernel|(?<![a-z])(?:sum|mean|argmax|argmin|max|min)(?![a-z])",
    ),
)
"""Plain words, the weakest evidence."""

RULES: tuple[KernelRule, ...] = (
    rule("nccl_one_rank", K.COPY, AT + r"oneRankReduce$"),
    *NAMED_COMMUNICATION,
    *GENERATED,
    *LIBRARIES,
    *FRAMEWORK,
    *WORDS,
)
"""The whole table in the order in which it is read."""
