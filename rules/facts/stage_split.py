"""Distribution of layers over pipeline stages for equal stage times."""

from collections import defaultdict
from collections.abc import Sequence

from perfdoc.knobs.knob import Value
from perfdoc.knobs.pipeline_layout import LAYOUT, stages_of
from perfdoc.results.waits import PipelineAnalysis
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.degrees import VPP, layers_of
from perfdoc.simulator.replay.edits.pipeline import FIRST, LAST

EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
MAX_LAYERS = 1024


def own_ns_by_stage(found: PipelineAnalysis) -> list[float] | None:
    """Mean own time of a step, by stage; None unless every stage was measured."""
    own: dict[int, int] = defaultdict(int)
    steps: dict[int, int] = defaultdict(int)
    for row in found.stages:
        if row.stage is None or not row.steps:
            return None
        own[row.stage] += row.own_ns
        steps[row.stage] += row.steps
    if found.pp is None or sorted(own) != list(range(found.pp)):
        return None
    return [own[s] / steps[s] for s in range(found.pp)]


def layers_apart(case: Case) -> float | None:
    """How much slower the slowest stage is than the fastest, in layers of the fastest, about. None if
    unknown.

    Four stages of 8 layers, 16, 16, 16 and 20 ms: (20 - 16) / 2 = 2.
    """
    own, layers = own_ns_by_stage(case.job.pipeline), layers_of(case)
    if own is None or not layers or min(own) <= 0:
        return None
    return (max(own) - min(own)) * layers / len(own) / min(own)


def mixed_layers(case: Case) -> bool:
    """Whether some layers are known to hold experts and others not, which take different times: what one
    layer takes is then not known."""
    model = case.job.facts.model
    return model is not None and bool(model.experts) and 0 < (model.expert_layers or 0) < model.layers


def layers_by_stage(case: Case, pp: int) -> list[int] | None:
    """The current distribution; None if the settings do not say, or there are virtual stages. A layout says
    with it how many layers there are."""
    if pp < 2:
        return None
    if (stages := _laid(case, pp)) is not None:
        return [stage.count("t") for stage in stages]
    layers = layers_of(case)
    if layers is None or not 0 < layers <= MAX_LAYERS:
        return None
    if case.degree(VPP) != 1 or not case.is_set_to(LAYOUT, None):
        return None
    ends = [case.setting(FIRST), case.setting(LAST)]
    if not all(known for known, _ in ends):
        return None
    first, last = (value if isinstance(value, int) else None for _, value in ends)
    if first is None and last is None:
        flags = [case.setting(name) for name in (EMBEDDING, LOSS)]
        if not all(known for known, _ in flags):
            return None
        less = [int(value is True) for _, value in flags]
        if (layers + sum(less)) % pp:
            return None
        split = [(layers + sum(less)) // pp] * pp
        return [split[0] - less[0], *split[1:-1], split[-1] - less[1]]
    middle = pp - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if rest < 0 or (rest % middle if middle else rest):
        return None
    each = rest // middle if middle else 0
    return [each if first is None else first, *[each] * (pp - 2), each if last is None else last]


def _laid(case: Case, pp: int) -> tuple[str, ...] | None:
    """The stages of the layout that is set; None without one that megatron-core would take of this model, and
    of one of virtual stages."""
    _, value = case.setting(LAYOUT)
    found = stages_of(value) if isinstance(value, str) else None
    if found is None or len(found.stages) != pp:
        return None
    held = "".join(found.stages)
    layers = layers_of(case) or held.count("t")
    return None if found.problem(num_layers=layers, pp=pp, mtp_layers=held.count("m")) else found.stages


def layout_of(case: Case, counts: Sequence[int]) -> str | None:
    """The layout that is set with other counts of decoder layers; None where none is."""
    stages = _laid(case, len(counts))
    if stages is None:
        return None
    decoder = ["" if n == 0 else "t" if n == 1 else f"t*{n}" for n in counts]
    rest = [stage.replace("t", "") for stage in stages]
    return "|".join(f"E{n}{r[1:]}" if r[:1] == "E" else n + r for n, r in zip(decoder, rest, strict=True))


def _by_switches(case: Case, counts: Sequence[int]) -> dict[str, Value] | None:
    """One layer less on the first stage, the last one, or both; None for any other distribution, and beside
    sizes that are set."""
    full = max(counts)
    less = full - counts[0], full - counts[-1]
    odd = set(counts[1:-1]) - {full} or set(less) - {0, 1} or not any(less)
    if odd or min(counts) < 1 or any(case.setting(knob)[1] is not None for knob in (FIRST, LAST)):
        return None
    return {EMBEDDING: bool(less[0]), LOSS: bool(less[1])}


def switched_off(case: Case) -> dict[str, Value]:
    """The switches that count embedding and loss as layers, where they are on: sizes exclude them."""
    return {f: False for f in (EMBEDDING, LOSS) if case.is_set_to(f, True)}


def as_settings(case: Case, counts: Sequence[int], mtp_layers: int) -> dict[str, Value]:
    """The settings for this distribution, conflicting ones switched off first: the switches that count
    embedding and loss as layers if these give it, sizes of the end stages if the others are equal, else a
    layout; the layout that is set with these counts."""
    if (laid := layout_of(case, counts)) is not None:
        return {LAYOUT: laid}
    if (switches := _by_switches(case, counts)) is not None:
        return switches
    found = switched_off(case)
    ends = {FIRST: counts[0], LAST: counts[-1]}
    set_now = {knob for knob in ends if case.setting(knob)[1] is not None}
    middle = set(counts[1:-1])
    if len(middle) <= 1 and min(counts) > 0:
        needed = {k for k, n in ends.items() if n not in middle} if middle else {LAST}
        return found | {knob: n for knob, n in ends.items() if knob in needed | set_now}
    stages = ["t" * n for n in counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp_layers + "L"
    return found | dict.fromkeys(sorted(set_now)) | {LAYOUT: "|".join(stages)}
