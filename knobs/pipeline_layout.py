"""A pipeline layout as frameworks write it: which layers lie on which stage.

`Et*3|(tt|)*2m|L`, five stages: E is the embedding, t a decoder layer, m a layer of multi-token prediction, L
the loss; `|` ends a stage, `x*3` and `(…)*3` repeat, commas mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass

LAYOUT = "pipeline_model_parallel_layout"
"""Canonical id of the setting."""
WRITTEN = pattern_of(r"[EtmL|()*,\s\d]+")
MAX_LAYERS = 4096
_REPEATED = pattern_of(r"\(([^()]+)\)\*(\d{1,4})")
_COPIES = pattern_of(r"([EtmL|])\*(\d{1,4})")


@dataclass(frozen=True, kw_only=True)
class Stages:
    """What a layout says, stage by stage; virtual stages in the order in which the micro-batch passes."""

    stages: tuple[str, ...]

    def problem(self, *, num_layers: int, pp: int, mtp_layers: int = 0) -> str:
        """Why megatron-core would refuse it; empty where it would not."""
        layers = "".join(self.stages)
        if len(self.stages) % pp:
            return f"{len(self.stages)} stages are not a multiple of PP {pp}"
        if not layers.startswith("E") or not layers.endswith("L"):
            return "the first layer must be the embedding (E), the last one the loss (L)"
        if layers.count("E") != 1 or layers.count("L") != 1:
            return "embedding (E) and loss (L) are there once"
        if layers.count("t") != num_layers:
            return f"{layers.count('t')} decoder layers (t), and num_layers is {num_layers}"
        if layers.count("m") != mtp_layers or "t" in layers.partition("m")[2]:
            return f"{mtp_layers} layers of multi-token prediction (m) must follow the decoder's"
        at = [stage for stage, held in enumerate(self.stages) if "m" in held]
        if len(at) > 1 or any(stage < len(self.stages) - pp for stage in at):
            return "all layers of multi-token prediction (m) lie on one stage, a rank's last"
        if at and at[0] % pp == 0 and pp > 1 and len(self.stages) > pp:
            return "layers of multi-token prediction (m) do not lie on the first pipeline rank"
        return ""


def stages_of(text: str | Sequence[object]) -> Stages | None:
    """The stages of a layout; None where it is none. A list is what is left of a text with commas."""
    joined = text if isinstance(text, str) else "".join(str(part) for part in text)
    plain = pattern_of(r"[,\s]").sub("", joined)
    if not plain or WRITTEN.fullmatch(plain) is None:
        return None
    for pattern in (_REPEATED, _COPIES):
        if sum(len(m[1]) * int(m[2]) for m in pattern.finditer(plain)) > MAX_LAYERS:
            return None
        plain = pattern.sub(lambda found: found[1] * int(found[2]), plain)
    if pattern_of(r"[EtmL|]+").fullmatch(plain) is None or len(plain) > 2 * MAX_LAYERS:
        return None
    return Stages(stages=tuple(plain.split("|")))
