"""The adaptation layer, in a process of its own: it replaces parts of torch."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.trainer.launch import need_megatron

pytestmark = pytest.mark.slow


def _run(body: str) -> str:
    need_megatron()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ON_CPU = """
    import torch
    if torch.cuda.is_available():
        raise SystemExit(0)
    from perfdoc.trainer import adapt
    adapt.prepare()
"""


def test_factories_and_tensors_answer_for_the_missing_device() -> None:
    _run(
        ON_CPU
        + """
    assert torch.zeros(2, device="cuda").device.type == "cpu"
    assert torch.empty(2, device=torch.cuda.current_device()).device.type == "cpu"
    assert torch.tensor([1], device="cpu", pin_memory=True).cuda(non_blocking=True).tolist() == [1]
    assert torch.ones(1).to("cuda").device.type == "cpu"
    assert torch.ones(1).to(torch.device("cuda"), torch.float64).dtype == torch.float64
    assert torch.ones(1).type() == "torch.FloatTensor"  # torch's own code sees the truth
    asked = {"__name__": "megatron.core.optimizer.clip_grads", "t": torch.ones(1)}
    exec("name = t.type()", asked)
    assert asked["name"] == "torch.cuda.FloatTensor"
    assert torch.ones(1).type(torch.float64).dtype == torch.float64
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        pass
    """
    )


def test_random_streams_are_separate_and_come_back() -> None:
    _run(
        ON_CPU
        + """
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    tracker = CudaRNGStatesTracker()
    torch.manual_seed(1)
    tracker.add("a", 7)
    expected = torch.Generator().manual_seed(7)
    outside = torch.rand(1, generator=torch.Generator().manual_seed(1))
    with tracker.fork("a"):
        assert torch.equal(torch.rand(2), torch.rand(2, generator=expected))
    assert torch.equal(torch.rand(1), outside)
    with tracker.fork("a"):
        assert torch.equal(torch.rand(2), torch.rand(2, generator=expected))
    """
    )


def test_nothing_is_compiled_and_torch_compile_is_given_back() -> None:
    _run(
        """
    import torch
    before = torch.compile
    from perfdoc.trainer import adapt
    adapt.prepare()
    assert torch.compile is before
    if not torch.cuda.is_available():
        from megatron.core.jit import jit_fuser
        assert jit_fuser(len) is len
    """
    )


def test_steps_are_separated_after_loading() -> None:
    """AdamW advances each parameter's `step`; a shared tensor would be advanced twice per update."""
    _run(
        """
    import torch
    from perfdoc.trainer.adapt.checkpoint import create_state, separate_steps
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    class Wrapper:
        optimizer = torch.optim.AdamW(params)
    create_state(Wrapper)
    assert all(float(state["step"]) == 0 for state in Wrapper.optimizer.state.values())
    shared = torch.tensor(5.0)
    for state in Wrapper.optimizer.state.values():
        state["step"] = shared
    separate_steps(Wrapper)
    for param in params:
        param.grad = torch.ones(2)
    Wrapper.optimizer.step()
    assert [float(state["step"]) for state in Wrapper.optimizer.state.values()] == [6.0, 6.0]
    """
    )


def test_every_named_configuration_is_one_that_megatron_core_accepts() -> None:
    """The GPU shapes too, as far as a CPU reaches: their settings pass megatron-core's own checks."""
    out = _run(
        """
    from perfdoc.trainer import adapt
    adapt.prepare()
    from perfdoc.trainer.config import named_configs, resolve
    from perfdoc.trainer.layout import default_world_size, plan
    from perfdoc.trainer.model import ddp_config, optimizer_config, transformer_config
    for name in named_configs():
        config = resolve(name).config
        device = "cpu" if name == "tiny" else "cuda"
        layout = plan(config, default_world_size(config), device, ["transformer_engine"])
        settings = transformer_config(config, layout)
        ddp_config(config)
        optimizer_config(config)
        print(name, settings.num_layers, settings.params_dtype, settings.num_moe_experts)
    """
    )
    assert out.splitlines() == [
        "gpt_125m 12 torch.bfloat16 None",
        "llama3_8b 32 torch.bfloat16 None",
        "mixtral_8x7b 32 torch.bfloat16 8",
        "tiny 4 torch.float32 None",
    ]


def test_what_is_not_refused_is_accepted_by_megatron_core() -> None:
    """Every other value of every setting that has a few, alone, on a GPU without Transformer Engine: what no
    rule refuses must not fail where megatron-core looks at it, after processes have started."""
    out = _run(
        """
    import dataclasses, types, typing
    from perfdoc.trainer import adapt
    adapt.prepare()
    from perfdoc.trainer.config import resolve
    from perfdoc.trainer.config.resolve import SECTIONS
    from perfdoc.trainer.layout import plan
    from perfdoc.trainer.model import ddp_config, optimizer_config, transformer_config

    def others(hint, default):
        kind, inner = typing.get_origin(hint), typing.get_args(hint)
        if kind is typing.Annotated:
            return others(inner[0], default)
        if kind is typing.Literal:
            return inner
        if kind in (typing.Union, types.UnionType):
            return [value for each in inner for value in others(each, default)]
        simple = {bool: ["true", "false"], int: [1, 2, 3 * (default or 1)], float: [0.5]}
        return simple.get(hint, [])

    EXPERTS = ["num_moe_experts=4", "expert_model_parallel_size=2"]
    STAGES = ["pipeline_model_parallel_size=2", "virtual_pipeline_model_parallel_size=2"]
    built = 0
    for more in [], EXPERTS, [*STAGES, "overlap_p2p_comm=true"]:
        for section in SECTIONS.keys() - {"profiling", "environment", "data", "checkpoint"}:
            hints = typing.get_type_hints(SECTIONS[section], include_extras=True)
            for field in dataclasses.fields(SECTIONS[section]):
                for value in others(hints[field.name], field.default):
                    base = ["data_parallel_size=null", "global_batch_size=32", "params_dtype=bf16"]
                    try:
                        config = resolve("tiny", [*base, *more, f"{field.name}={value}"]).config
                        layout = plan(config, 4, "cuda", ())
                    except ValueError:
                        continue
                    built += 1
                    try:
                        transformer_config(config, layout), ddp_config(config), optimizer_config(config)
                    except Exception as error:
                        print(field.name, value, error)
    print(built)
    """
    )
    *refused, built = out.splitlines()
    assert refused == []
    assert int(built) > 300
