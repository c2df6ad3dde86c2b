"""What stacks say about memory: frames as PyTorch, megatron-core and Transformer Engine have them."""

from __future__ import annotations

import pytest

from perfdoc.analyzers.memory.categories import Use, tensor_of, use_of_frame
from perfdoc.analyzers.memory.places import printable, short_path, site_of
from perfdoc.traces.memory.model import MemoryFrame

PACKAGES = "/home/ann/.venv/lib/python3.12/site-packages/"
MCORE = PACKAGES + "megatron/core/"


@pytest.mark.parametrize(
    ("path", "function", "use"),
    [
        (PACKAGES + "torch/nn/modules/module.py", "_apply", Use.PARAMETERS),
        (PACKAGES + "torch/nn/modules/module.py", "_call_impl", Use.FORWARD),
        (PACKAGES + "torch/nn/modules/linear.py", "__init__", Use.PARAMETERS),
        (PACKAGES + "torch/nn/functional.py", "rms_norm", Use.FORWARD),
        (PACKAGES + "torch/optim/adamw.py", "_init_group", Use.OPTIMIZER),
        (PACKAGES + "torch/optim/optimizer.py", "zero_grad", Use.GRADIENTS),
        (PACKAGES + "torch/optim/lr_scheduler.py", "step", Use.NONE),
        (PACKAGES + "torch/autograd/graph.py", "_engine_run_backward", Use.BACKWARD),
        (PACKAGES + "torch/distributed/distributed_c10d.py", "all_gather_object", Use.COMMUNICATION),
        (
            PACKAGES + "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
            "allocate",
            Use.COMMUNICATION,
        ),
        (PACKAGES + "torch/nn/parallel/distributed.py", "_ddp_init_helper", Use.COMMUNICATION),
        (PACKAGES + "transformer_engine/pytorch/module/linear.py", "forward", Use.FORWARD),
        (PACKAGES + "transformer_engine/pytorch/module/linear.py", "backward", Use.BACKWARD),
        (PACKAGES + "transformer_engine/pytorch/optimizers/fused_adam.py", "step", Use.OPTIMIZER),
        (PACKAGES + "transformer_engine/pytorch/module/base.py", "initialize_ub", Use.COMMUNICATION),
        (MCORE + "distributed/param_and_grad_buffer.py", "__init__", Use.GRADIENT_BUFFER),
        (MCORE + "distributed/finalize_model_grads.py", "finalize_model_grads", Use.GRADIENTS),
        (MCORE + "tensor_parallel/layers.py", "_initialize_affine_weight_gpu", Use.PARAMETERS),
        (MCORE + "tensor_parallel/cross_entropy.py", "calculate_predicted_logits", Use.FORWARD),
        (MCORE + "pipeline_parallel/p2p_communication.py", "create_tensor_recv_prev", Use.COMMUNICATION),
        (MCORE + "utils.py", "get_tensor", Use.COMMUNICATION),
        (MCORE + "optimizer/distrib_optimizer.py", "_build_model_and_main_param_groups", Use.OPTIMIZER),
        ("C:\\work\\torch\\optim\\sgd.py", "step", Use.OPTIMIZER),
        (
            "??",
            "void torch::autograd::AccumulateGrad::accumulateGrad<std::function<void (at::T",
            Use.GRADIENTS,
        ),
        (
            "accumulate_grad.cpp",
            "torch::autograd::(anonymous namespace)::AccumulateGrad_apply_impl(",
            Use.GRADIENTS,
        ),
        ("??", "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::G", Use.BACKWARD),
        ("reducer.cpp", "c10d::Reducer::initialize_buckets(std::vector<", Use.COMMUNICATION),
        ("", "", Use.NONE),
    ],
)
def test_one_frame(path: str, function: str, use: Use) -> None:
    assert use_of_frame(MemoryFrame(path, function, 7)) == use


@pytest.mark.parametrize(
    ("path", "short"),
    [
        (PACKAGES + "torch/optim/adamw.py", "torch/optim/adamw.py"),
        (PACKAGES + "megatron/core/models/gpt/gpt_model.py", "core/models/gpt/gpt_model.py"),
        ("/home/ann/train.py", "train.py"),
        ("/home/ann/secret-client/net/model.py", "net/model.py"),
        ("C:\\Users\\ann\\train.py", "train.py"),
        ("/root/train.py", "train.py"),
        ("/usr/lib/python3.12/contextlib.py", "contextlib.py"),
        ("<string>", "<string>"),
        ("", ""),
    ],
)
def test_short_paths(path: str, short: str) -> None:
    assert short_path(path) == short


def test_sites_skip_what_passes_calls_on() -> None:
    stack = [
        MemoryFrame("??", "at::_ops::bmm::call(at::Tensor const&)", 0),
        MemoryFrame(PACKAGES + "torch/functional.py", "einsum", 373),
        MemoryFrame(PACKAGES + "einops/einops.py", "einsum", 939),
        MemoryFrame("/home/ann/net/model.py", "forward", 39),
    ]
    assert site_of(stack) == ("forward", "net/model.py", 39)
    assert site_of(stack[:3]) == ("einsum", "torch/functional.py", 373)
    node = MemoryFrame("??", "torch::autograd::generated::BmmBackward0::apply(std::vector<at::Tensor>&&)", 0)
    assert site_of([stack[0], node]) == ("BmmBackward0", "", None)
    assert site_of([]) == ("(no stack)", "", None)


def test_hostile_text_is_cut_and_cleaned() -> None:
    assert printable("a\x1b[2J\n\u202e" + "x" * 1000) == "a?[2J??" + "x" * 113


@pytest.mark.parametrize(
    ("stack", "tensor"),
    [
        ((("torch/nn/functional.py", "cross_entropy", 3), ("net/train.py", "step", 9)), "loss"),
        ((("net/model.py", "forward", 3), ("net/losses.py", "chunked_cross_entropy", 9)), "loss"),
        ((("transformers/loss/loss_utils.py", "ForCausalLMLoss", 47),), "loss"),
        ((("torch/nn/functional.py", "softmax", 3), ("net/attention.py", "forward", 9)), "attention"),
        ((("torch/optim/adamw.py", "_init_group", 100), ("net/train.py", "step", 9)), "optimizer"),
        ((("torch/distributed/fsdp/_flat_param.py", "_alloc_padded_unsharded", 7),), "weights"),
        ((("transformers/cache_utils.py", "update", 7), ("net/attention.py", "forward", 9)), "cache"),
        ((("net/model.py", "forward", 3),), ""),
        ((), ""),
    ],
)
def test_what_a_failed_request_was_for(stack: tuple[tuple[str, str, int], ...], tensor: str) -> None:
    frames = [MemoryFrame(filename=file, function=function, line=line) for file, function, line in stack]
    assert tensor_of(frames) == tensor
