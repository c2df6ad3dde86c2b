"""Advice fits what the capture shows: a table of rules and assumptions, each on the rule's own example."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from perfdoc.analyzers.device.frameworks import _NAMES, Program, Vendor, program_of
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.assumptions import (
    EAGER,
    ENGINE,
    FLASH,
    NVIDIA,
    PEERS,
    TRAINING,
    TRANSFORMER,
    Assumption,
)
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.possible import why_not
from perfdoc.rules.engine.registry import own_rules
from perfdoc.rules.engine.rule import Rule
from tests.analyzers.tiny import GEMM, trace_of
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import case_of, gain_of, predicting, result, step_with_gap
from tests.rules.examples import Planting, examples

META = {rule.meta.code: rule.meta for rule in own_rules()}
EXAMPLES = sorted(examples())


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Planting], Case]:
    return cache(lambda planting: planting(tmp_path_factory.mktemp("example")))


def showing(case: Case, program: Program, gpu: str = "", framework: str | None = None) -> Case:
    """The same captures, as of a job that runs this, on this GPU."""

    def shown(capture: CaptureMeasurement) -> CaptureMeasurement:
        ranks = [
            replace(r, device=replace(r.device, gpu_name=gpu or r.device.gpu_name)) for r in capture.ranks
        ]
        named = capture.framework if framework is None else framework
        return replace(capture, program=program, ranks=ranks, framework=named)  # type: ignore[arg-type]

    return replace(case, captures=[shown(capture) for capture in case.captures])


def with_marks(*marks: str, vendor: Vendor = "nvidia", optimizers: tuple[str, ...] = ()) -> Program:
    return Program(vendor=vendor, marks=frozenset(marks), optimizers=frozenset(optimizers))


def texts(found: RuleResult) -> str:
    """All that it tells people to do."""
    pieces = [text for piece in found.advice for text in (piece.why, piece.costs)]
    return " ".join([found.action, found.remedy, found.verify, found.false_alarm, *pieces])


BREAKS: dict[str, tuple[Assumption, Program, str]] = {
    "AMD": (NVIDIA, with_marks("trains", vendor="amd"), "AMD Instinct MI300X"),
    "Intel": (ENGINE, with_marks("trains", vendor="intel"), "Intel(R) Data Center GPU Max 1550"),
    "V100": (FLASH, with_marks("trains"), "Tesla V100-SXM2-32GB"),
    "compiled": (EAGER, with_marks("compiled", "trains"), ""),
    "convolutions": (TRANSFORMER, with_marks("convolves", "trains"), ""),
}
DECLARED = [
    (code, kind)
    for code in EXAMPLES
    for kind, (of, _, _) in BREAKS.items()
    if any(a.of is of for a in META[code].assumes)
]


@pytest.mark.parametrize(("code", "kind"), DECLARED)
def test_what_a_rule_says_only_under_an_assumption_is_not_said_without_it(
    code: str, kind: str, planted: Callable[[Planting], Case]
) -> None:
    of, program, gpu = BREAKS[kind]
    found = result(code, showing(planted(examples()[code].case), program, gpu))
    for assumes in (a for a in META[code].assumes if a.of is of):
        if not assumes.words:
            assert found.state in ("not_applicable", "skipped")
        else:
            words = assumes.words.strip(" ,.()")
            assert words not in texts(found) or words in assumes.instead


TERMS = {
    "AMD": r"\bnsys\b|Nsight|nvidia-smi|CUDA_DEVICE_MAX|cuda_sync_events|boost-slider|\bAmpere|CUDA graph",
    "Intel": r"\bnsys\b|Nsight|nvidia-smi|CUDA|Transformer Engine|flash-attn|torch\.cuda|Ampere|TF32",
    "V100": r"flash-attn|bfloat16|\bFP8 GEMM",
    "compiled": r"torch\.compile(?! runs already| of its step)",
}
OWN_SETTING = {"PD501", "PD112", "PD905", "PD313", "PD343", "PD902", "PD901"}
"""Their words are names of settings that hold on every GPU (PYTORCH_CUDA_ALLOC_CONF), or of a domain that is
known; torch.cuda's memory recorder has the same name in each build that has one. PD901 repeats what the
reader of an Nsight file says."""


@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("code", [c for c in EXAMPLES if c not in OWN_SETTING])
def test_no_rule_speaks_of_another_kind_of_job(
    code: str, kind: str, planted: Callable[[Planting], Case]
) -> None:
    """Every rule, whether it declares the assumption or not: on a job of plain PyTorch."""
    _, program, gpu = BREAKS[kind]
    found = result(code, showing(planted(examples()[code].case), program, gpu, framework="pytorch"))
    if found.state == "fires":
        assert re.findall(TERMS[kind], " ".join([found.action, found.remedy])) == []


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
@pytest.mark.parametrize("code", EXAMPLES)
def test_a_server_hears_nothing_of_training(
    code: str, engine: str, planted: Callable[[Planting], Case]
) -> None:
    case = showing(planted(examples()[code].case), with_marks(engine, "compiled"), framework="pytorch")
    found = result(code, case)
    if not case.captures:
        return  # a snapshot alone shows no engine
    if found.state != "fires":
        assert META[code].for_servers or found.state in ("not_applicable", "skipped", "passes")
        return
    assert META[code].for_servers
    said = " ".join([found.action, found.remedy])
    assert not re.search(r"micro-batch|optimizer|DDP\b|backward|FSDP|\bTrain\b|fine-tuning", said), said


def test_a_trainer_that_serves_for_itself_still_trains() -> None:
    """Reinforcement learning: rollouts by vLLM inside a job whose optimizer steps."""
    assert not with_marks("vllm", "trains").serves
    assert with_marks("vllm").serves
    assert with_marks("vllm", "pytorch", "trains").framework == "pytorch"


@pytest.mark.parametrize(
    ("optimizers", "said", "unsaid"),
    [
        (("AdamW",), "torch.optim.AdamW(..., fused=True)", "SGD"),
        (("SGD",), "torch.optim.SGD(..., fused=True)", "Adam"),
        (("Adadelta",), "torch.optim.Adadelta(..., foreach=True)", "fused=True"),
        (("RMSprop",), "foreach=True", "fused=True"),
        (("LBFGS",), "neither a fused nor a foreach form", "fused=True"),
        (("Muon",), "torch._foreach_*", "fused=True"),
        (("FusedAdam", "Adagrad"), "torch.optim.Adagrad(..., fused=True)", "FusedAdam"),
        ((), "torch.optim.AdamW(..., fused=True)", "What loops"),
    ],
)
def test_an_optimizer_is_given_what_it_takes(
    optimizers: tuple[str, ...], said: str, unsaid: str, planted: Callable[[Planting], Case]
) -> None:
    case = showing(
        planted(examples()["PD408"].case), with_marks("trains", optimizers=optimizers), framework="pytorch"
    )
    remedy = result("PD408", case).remedy
    assert said in remedy
    assert unsaid not in remedy


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        (("transformers", "trains"), 'TrainingArguments(optim="adamw_torch_fused")'),
        (("torchtitan", "trains"), 'optimizer.implementation = "fused"'),
    ],
)
def test_a_trainer_names_its_own_setting(
    marks: tuple[str, ...], said: str, planted: Callable[[Planting], Case]
) -> None:
    program = with_marks(*marks, optimizers=("AdamW",))
    case = showing(planted(examples()["PD408"].case), program, framework="pytorch")
    assert result("PD408", case).remedy == f"{said}."


def test_where_a_fused_optimizer_runs_the_change_is_none(planted: Callable[[Planting], Case]) -> None:
    case = planted(examples()["PD408"].case)
    assert why_not(showing(case, with_marks("trains")), "fused_optimizer", []) == ""
    assert "done already" in why_not(
        showing(case, with_marks("trains", "fused_optimizer")), "fused_optimizer", []
    )


def test_where_workers_load_already_they_are_the_limit(planted: Callable[[Planting], Case]) -> None:
    """The stall is a bound, not a prediction, and nobody is told to load in separate processes."""
    case = planted(examples()["PD203"].case)
    settings = {k: v for k, v in case.configuration.values.items() if k != "dataloader_num_workers"}
    case = replace(case, configuration=replace(case.configuration, values=settings))
    case = predicting(case, without_data=(10.0, 20.0, 30.0))
    alone = result("PD203", showing(case, with_marks("trains")))
    assert (gain_of(alone).method, "num_workers=4" in alone.remedy) == ("replay", True)
    for marks, pins in ((("workers",), True), (("workers", "pins"), False)):
        found = result("PD203", showing(case, with_marks("trains", *marks)))  # type: ignore[arg-type]
        assert gain_of(found).method == "ceiling"
        assert found.action == "Make the loader's workers faster"
        assert "num_workers=4" not in found.remedy
        assert "prefetch_factor" in found.remedy
        assert ("pin_memory" in found.remedy) == pins
    paddle = result("PD203", showing(case, with_marks("trains", "paddle")))
    assert ("paddle.io.DataLoader" in paddle.remedy, "pin_memory" in paddle.remedy) == (True, False)
    assert why_not(showing(case, with_marks("workers")), "without_data", []) != ""


def test_one_gpu_alone_is_not_asked_what_communicates(tmp_path: Path) -> None:
    """10 % of kernel time is of no known class; with an all-reduce beside it, it may be communication."""
    case = examples()["PD903"].case(tmp_path)
    assert "--comm-kernel" in result("PD903", case).remedy
    alone = replace(
        case,
        captures=[replace(c, ranks=[replace(r, communication=[]) for r in c.ranks]) for c in case.captures],
    )
    assert PEERS.holds(alone) is False
    assert result("PD903", alone).state == "passes"


NAMES = {
    ("VLLM::EngineCor",): {"vllm"},
    ("Torch-Compiled Region: 0/1",): {"compiled"},
    ("## Call CompiledFxGraph fud64 ##",): {"compiled", "pytorch"},
    ("triton_poi_fused_add_0",): {"compiled", "network"},
    ("triton_red_fused_native_layer_norm_1",): {"compiled", "network"},
    ("triton__0d1d2d3d",): {"compiled", "network"},
    ("_triton_kernel_of_mine",): {"network"},
    ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",): {"workers"},
    ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",): set(),
    ("Optimizer.step#AdamW.step",): {"trains", "backward"},
    ("aten::_fused_adamw_",): {"fused_optimizer", "pytorch", "trains", "backward", "forward"},
    ("transformers/models/megatron_bert/modeling_megatron_bert.py(7): forward",): set(),
    ("megatron/core/transformer/attention.py(7): forward",): {"megatron", "network"},
    ("torchtitan/train.py(310): train_step",): {"torchtitan"},
    ("sglang/srt/managers/scheduler.py(5): run_batch",): {"sglang"},
    ("vllm/v1/worker/gpu_model_runner.py(9): execute_model",): {"vllm"},
    ("execute_context_0(0)_generation_32(32)",): {"vllm"},
    ("execute_16_context_0(sq0sk0)_generation_16(sq16)",): {"vllm"},
    ("step[DECODE bs=4]",): {"sglang"},
    ("[Executor] _forward_step 7: 0 ctx reqs, 64 gen reqs",): {"tensorrt_llm", "forward"},
    ("deepspeed/runtime/engine.py(1900): forward",): {"deepspeed"},
    ("[pl][profile]run_training_batch",): {"lightning"},
    ("transformers/trainer.py(3700): training_step",): {"transformers"},
}


@pytest.mark.parametrize("names", NAMES)
def test_marks_by_names(names: tuple[str, ...], tmp_path: Path) -> None:
    builder = TimelineBuilder()
    device = builder.process().device()
    device.kernel("k", 0, 10)
    found = program_of(replace(trace_of(builder, tmp_path), strings=["k", *names]))
    assert set(found.marks) == NAMES[names]


def test_marks_that_are_asked_for_are_given() -> None:
    """By their texts: what a rule or `Program` looks for among the marks is one that a program can have."""
    known, asked = {*_NAMES.marks, "megatron", "hidden", "steps"}, set[str]()
    for room in ("analyzers", "rules"):
        for file in (Path(__file__).parents[2] / room).rglob("*.py"):
            text = file.read_text()
            asked |= set(re.findall(r'"(\w+)" (?:not )?in (?:\w+\.)*marks\b', text))
            for several in re.findall(r"\bmarks [&-] \{([^}]*)\}|engines = \{([^}]*)\}", text):
                asked |= set(re.findall(r'"(\w+)"', "".join(several)))
    assert len(asked) > 15
    assert asked - known == set()


@pytest.mark.parametrize(
    ("gpu", "names", "vendor"),
    [
        ("AMD Instinct MI300X", ("hipLaunchKernel",), "amd"),
        (None, ("hipExtModuleLaunchKernel",), "amd"),
        (None, ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64",), "amd"),
        ("Intel(R) Data Center GPU Max 1550", (), "intel"),
        (None, ("urEnqueueKernelLaunch",), "intel"),
        ("NVIDIA H100 80GB HBM3", ("hip_like_name",), "nvidia"),
        (None, ("cudaLaunchKernel",), "nvidia"),
        (None, ("cnInvokeKernel", "void cutlass::Kernel2<x>"), "other"),
        ("MTT S5000", ("musaLaunchKernel",), "other"),
        ("MetaX C500", ("cudaLaunchKernel",), "other"),
        ("Iluvatar BI-V150", ("cudaLaunchKernel",), "other"),
        (None, ("suLaunchKernel",), "other"),
        ("K100_AI", ("hipLaunchKernel",), "other"),
        ("BW1000", ("hipLaunchKernel",), "other"),
        ("Tesla K80", ("cudaLaunchKernel",), "nvidia"),
        (None, ("myKernel",), ""),
    ],
)
def test_vendors(gpu: str | None, names: tuple[str, ...], vendor: str, tmp_path: Path) -> None:
    builder = TimelineBuilder()
    device = builder.process().device()
    device.kernel("k", 0, 10)
    trace = trace_of(builder, tmp_path)
    devices = [replace(d, gpu_name=gpu) for d in trace.devices]
    assert program_of(replace(trace, strings=["k", *names], devices=devices)).vendor == vendor


@pytest.mark.parametrize(
    ("vendor", "graphs"), [("nvidia", "CUDA graphs"), ("amd", "HIP graphs"), ("other", "Captured graphs")]
)
def test_graphs_by_vendor(vendor: Vendor, graphs: str, tmp_path: Path) -> None:
    case = case_of(tmp_path, step_with_gap(200))
    (capture,) = case.captures
    shown = replace(capture, program=replace(capture.program, vendor=vendor))
    assert f"{graphs} launch a layer" in result("PD201", replace(case, captures=[shown])).remedy


SPOKEN = {
    NVIDIA: re.compile(r"\bnsys --|nvidia-smi(?! topo)|Nsight"),
    EAGER: re.compile(r"torch\.compile(?! runs already| of its step)"),
    FLASH: re.compile(r"flash-attn"),
    ENGINE: re.compile(r"\((?:[\w. ,']*, )?Transformer Engine"),
    PEERS: re.compile(r"--comm-kernel REGEX"),
}
ELSEWHERE = {"PD406", "PD110"}
"""They need a GPU of NVIDIA that is known, or a setting of Transformer Engine."""


@pytest.mark.parametrize("rule", own_rules(), ids=lambda rule: rule.meta.code)
def test_a_rule_that_speaks_of_a_tool_says_what_that_assumes(rule: Rule) -> None:
    """By the words in its file, whether an example reaches them or not."""
    module = sys.modules[rule.evaluate.__module__]
    tree = ast.parse(inspect.getsource(module))
    docs = {
        ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }
    strings = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docs
    }
    sources = set(rule.meta.sources)
    for of, words in SPOKEN.items():
        said = {text for text in strings - sources if words.search(text)}
        declared = any(a.of in (of, TRAINING) for a in rule.meta.assumes)
        assert not said or declared or rule.meta.code in ELSEWHERE, (of.words, said)


@pytest.mark.parametrize(("compiled_us", "holds"), [(0, None), (9, None), (20, False), (100, False)])
def test_a_few_compiled_functions_are_no_compiled_model(
    compiled_us: int, holds: bool | None, tmp_path: Path
) -> None:
    """100 us of element-wise kernels, so much of it in a compiler's: as megatron-core's own fusions are."""
    builder, thread, device = one_gpu()
    at = 10_000
    names = (
        ("triton_poi_fused_add_0", compiled_us),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", 100 - compiled_us),
    )
    for name, took_us in (*names, (GEMM, 300)):
        if took_us:
            device.kernel(name, at, at + took_us * 1_000, launch=(thread, at - 9_000, at - 5_000))
            at += took_us * 1_000
    case = case_of(tmp_path, builder)
    assert ("compiled" in case.program.marks) == (compiled_us > 0)
    assert EAGER.holds(case) is holds


@pytest.mark.parametrize(
    ("thread", "kernel", "plain"),
    [("jacobi", "volta_sgemm_128x64_nn", True), ("python3", "volta_sgemm_128x64_nn", False)]
    + [("", "volta_sgemm_128x64_nn", False), ("jacobi", "flash_fwd_kernel", False)],
)
def test_products_alone_make_no_network_of_a_program_without_python(
    thread: str, kernel: str, plain: bool, tmp_path: Path
) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    process.device().kernel(kernel, 0, 1_000, launch=(process.thread(name=thread), 0, 10) if thread else None)
    assert program_of(trace_of(builder, tmp_path)).is_plain == plain


@pytest.mark.parametrize(
    ("code", "marks", "has", "lacks"),
    [
        ("PD413", ("tensorrt", "network"), "dumpLayerInfo", "vLLM"),
        ("PD413", ("native_engine", "network"), "one kernel", "vLLM"),
        ("PD413", ("jax", "network", "trains", "averages"), "Pallas", "torch"),
        ("PD413", ("pytorch", "network", "trains", "averages"), "torch._foreach_lerp_", "vLLM"),
        ("PD413", ("pytorch", "network", "trains"), "torch.compile", "_foreach_lerp_"),
        ("PD407", ("tensorflow", "network", "trains"), "mixed_bfloat16", "GradScaler"),
    ],
)
def test_advice_is_in_the_words_of_the_program(
    code: str, marks: tuple[str, ...], has: str, lacks: str, planted: Callable[[Planting], Case]
) -> None:
    case = showing(planted(examples()[code].case), with_marks(*marks), framework="")
    found = result(code, case)
    assert (found.state, has in found.remedy, lacks in found.remedy) == ("fires", True, False)


@pytest.mark.parametrize(
    ("marks", "framework"),
    [(("vllm",), "vllm"), (("sglang",), "pytorch"), (("native_engine",), ""), (("tensorrt",), "")],
)
def test_an_engine_without_python_has_no_settings_of_pytorch(marks: tuple[str, ...], framework: str) -> None:
    assert with_marks(*marks, "network").framework == framework


def test_fp16_of_tensorflow_scales_by_its_own(planted: Callable[[Planting], Case]) -> None:
    program = with_marks("tensorflow", "network", "trains")
    case = showing(planted(examples()["PD407"].case), program, "Tesla V100-SXM2-32GB")
    remedy = result("PD407", case).remedy
    assert ("mixed_float16" in remedy, "GradScaler" in remedy) == (True, False)
