"""One piece of a guide's advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

TOPICS: Mapping[str, str] = MappingProxyType(
    {
        "comm_overlap": "Communication beside compute",
        "comm_dtype": "Number formats of communication",
        "network": "Network and topology",
        "scale": "Many GPUs",
        "parallel_mapping": "How ranks divide the model and the data",
        "pipeline": "Pipeline parallelism",
        "moe": "Mixture of experts",
        "long_sequence": "Long sequences",
        "host_overhead": "The host",
        "low_precision": "Low precision",
        "fusion": "Fusions and attention",
        "memory": "Memory",
        "packing": "Packing and padding",
        "clock": "Clocks",
        "profiling": "Profiling",
        "capture": "Quality of the capture",
    }
)
"""Topic → its heading, in the order in which pages show them; each is a file of entries."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a guide says in one place. Either rules decide it, or it says why data cannot."""

    id: str
    topic: str
    says: str
    """The advice in a sentence."""
    undecided: str = ""
    """Why no rule decides it; empty where one does."""
