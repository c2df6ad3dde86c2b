"""Each of them reads and writes whole tensors through HBM; one kernel in their place does so once."""

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.patterns import pattern_of
from perfdoc.results.efficiency import OperatorEfficiency
from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.assumptions import (
    EAGER,
    ENGINE,
    FLASH,
    NO_ENGINE,
    OUTSIDE,
    PYTORCH,
    TRANSFORMER,
    Assumes,
)
from perfdoc.rules.engine.gain import RankMeasurement, bound_of, time_share
from perfdoc.rules.engine.needs import GPUS, WINDOW
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, informs, passes
from perfdoc.rules.facts.capture import KERNELS
from perfdoc.rules.facts.graphs import of_names, without_kernels
from perfdoc.rules.facts.roofline import PARTED, most_by_replay, of_roofline, worst

_COMPILE = "Compile the layers (torch.compile), or take fused ones."
_ENGINES = (
    "Let the engine compile its layers, if it does not yet (vLLM without enforce_eager, SGLang with "
    "--enable-torch-compile), or take fused ones."
)
_LIBRARIES = "Transformer Engine has LayerNormMLP, Liger norms and losses, flash-attn attention."
_XLA = (
    "XLA fuses what one jit holds: jit all of the step. Transposes end a fusion: have fewer, or use Pallas."
)
_TENSORRT = (
    "TensorRT fuses as it builds the engine: see which layers stay apart and what reformats lie between "
    "(trtexec --dumpLayerInfo); give inputs, outputs and plugins the formats and types of what lies beside."
)
_AVERAGE = (
    "If they are of the weights' moving average (EMA): torch._foreach_lerp_ over all parameters at once, as "
    "AveragedModel(multi_avg_fn=get_ema_multi_avg_fn(decay)) does."
)
_CASTS = ", or let torch.compile fuse casts with what reads them"
_COPY_LESS = (
    "Find who asks for them (.to, .float, .contiguous, cat; under autocast each use of a FP32 weight is a "
    f"cast): keep weights and activations in one dtype and layout{_CASTS}."
)
_LAYOUT = pattern_of("(?i)nchw_?to_?nhwc|nhwc_?to_?nchw|n(?:chw|hwc)AddPadding")
_CHANNELS_LAST = (
    "Keep the model and its inputs in channels_last (.to(memory_format=torch.channels_last)): convolutions "
    "on tensor cores take it, and convert what comes otherwise."
)
META = Meta(
    title="Memory-bound kernels that are not fused",
    action="Fuse memory-bound kernels",
    sources=("PyTorch, torch.compile", "NVIDIA, Transformer Engine"),
    topic="fusion",
    behind=(("PD405", "may share kernels with PD405"),),
    needs=(GPUS, KERNELS, WINDOW, PARTED),
    assumes=(
        Assumes(of=EAGER, words=_COMPILE, instead=OUTSIDE),
        Assumes(of=NO_ENGINE, words=_COMPILE, instead=_ENGINES),
        Assumes(of=PYTORCH, words=f"{_COMPILE} {_LIBRARIES}", instead=_XLA),
        Assumes(of=TRANSFORMER, words=_LIBRARIES),
        Assumes(of=ENGINE, words=_LIBRARIES, instead="Liger has norms and losses."),
        Assumes(of=FLASH, words=", flash-attn attention"),
        Assumes(of=EAGER, words=_CASTS),
        Assumes(of=PYTORCH, words=_COPY_LESS, instead="Keep tensors in one dtype and layout."),
        Assumes(of=PYTORCH, words=_CHANNELS_LAST, instead="Hold images in NHWC."),
    ),
    for_servers=True,
)

MIN_FRAC, MIN_LAYOUT_FRAC = 0.1, 0.05
"""Of the window, mean over ranks. PD404 names sequences that it recognises from 1 % on."""
_CLASSES = ("elementwise", "copy", "norm", "softmax", "reduction", "quantisation", "random", "loss")
_KEY = "fused_runs"
_layout_ns, _layout_apart_ns = of_names(lambda k: _LAYOUT.search(k.short_name))
_copying_ns, _copying_apart_ns = of_names(lambda k: k.kernel_class is KernelClass.COPY)
_, _apart_ns = of_names(lambda k: k.kernel_class.name.lower() in _CLASSES)
_ALL_FUSED = "each run of them in the time of its longest kernel, all of it fused"


def evaluate(case: Case) -> Verdict:
    """Fires where `MIN_FRAC` of the window are copies, or runs of such kernels beyond the longest of each."""
    share, evidence = time_share(case, "runs of memory-bound kernels beyond the longest of each", _fusible_ns)
    layout, of_layout = time_share(case, "conversions between NCHW and NHWC", _layout_ns)
    if (converts := layout >= MIN_LAYOUT_FRAC) and 2 * layout >= share:
        return fires(
            action="Keep images in channels_last",
            reason="tensors are converted between NCHW and NHWC around convolutions",
            evidence=[*of_layout, *evidence],
            remedy=f"{_CHANNELS_LAST} {_COMPILE}" if share - layout >= MIN_FRAC else _CHANNELS_LAST,
            gain=without_kernels(case, _layout_ns, _layout_apart_ns, "all conversions between NCHW and NHWC"),
            verify="Run again: no such conversions are left.",
            false_alarm="Operators that take NCHW alone convert back what lies between convolutions.",
        )
    if share < MIN_FRAC:
        copies, of_copies = time_share(case, "kernels that copy or cast", _copying_ns)
        if copies < MIN_FRAC or case.program.serves or case.program.has_no_python:
            return passes(evidence)
        return informs(
            action="Copy and cast tensors less",
            reason="tensors are copied or cast by kernels of their own",
            evidence=of_copies,
            remedy=_COPY_LESS,
            gain=without_kernels(case, _copying_ns, _copying_apart_ns, "all kernels that copy or cast"),
            verify="Run again: fewer such kernels, and less of the window in them.",
            false_alarm="Copies that the model is made of: a cache that is written, tensors that are joined.",
        )
    times = {name: case.share(lambda r, n=name: _class_ns(r, n)) or 0.0 for name in _CLASSES}  # type: ignore[misc]
    most = sorted((t, n.replace("elementwise", "element-wise")) for n, t in times.items() if t)[::-1][:4]
    return informs(
        reason="runs of memory-bound kernels could each be one kernel",
        evidence=[
            *evidence,
            *(of_layout if converts else ()),
            (f"of the {case.unit}", ", ".join(f"{name} {per_cent(t)}" for t, name in most)),
            *map(of_roofline, worst(case, _known)[:1]),
        ],
        remedy=_how(case) + f" {_CHANNELS_LAST}" * converts,
        gain=bound_of(case, _KEY, most_by_replay(case, _KEY, _fusible_ns, _ALL_FUSED, _apart_ns)),
        verify="Run again: fewer such kernels, and less of the window in them.",
        false_alarm="Kernels of one run that work on different tensors gain launches only.",
    )


def _how(case: Case) -> str:
    if case.program.has_no_python:
        return _TENSORRT if "tensorrt" in case.program.marks else "Do what one tensor needs in one kernel."
    of_weights = f"{_AVERAGE} Else: " if {"averages", "pytorch"} <= case.program.marks else ""
    return f"{of_weights}{_COMPILE} {_LIBRARIES} Keep tensors contiguous and in one dtype: copies go then."


def _known(rank: RankMeasurement) -> list[OperatorEfficiency]:
    return [o for o in rank.efficiency.operators if o.kernel_class in _CLASSES]


def _fusible_ns(rank: RankMeasurement) -> int:
    return rank.efficiency.fusible_ns


def _class_ns(rank: RankMeasurement, name: str) -> int:
    return sum(row.time_ns for row in rank.efficiency.by_class if row.kernel_class == name)
