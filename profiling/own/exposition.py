"""Figures of a training as the text that Prometheus scrapes."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from perfdoc.kept import table

_FILE = Path(__file__).resolve().parents[1] / "metrics.yaml"


def metrics() -> Mapping[str, Mapping[str, str]]:
    """Figure → what it is (`told`), and the `label` of what there is several of (`idle_seconds/host`)."""
    return cast(Mapping[str, Mapping[str, str]], table(_FILE))


def exposition(figures: Mapping[str, float], run: str) -> str:
    """The text of some figures, all gauges. run: a label, so that two runs' files do not contradict.

    >>> print(exposition({"idle_seconds/host": 0.25}, "mine"), end="")
    # HELP perfdoc_idle_seconds Of a profiled step, time in which nothing ran on the device
    # TYPE perfdoc_idle_seconds gauge
    perfdoc_idle_seconds{run="mine",cause="host"} 0.25
    """
    lines = []
    for metric, about in metrics().items():
        parts = {name.partition("/")[2]: v for name, v in figures.items() if name.partition("/")[0] == metric}
        if parts:
            lines += [f"# HELP perfdoc_{metric} {about['told']}", f"# TYPE perfdoc_{metric} gauge"]
        for part, value in parts.items():
            more = f',{about["label"]}="{_escaped(part)}"' if part else ""
            lines.append(f'perfdoc_{metric}{{run="{_escaped(run)}"{more}}} {value:.15g}')
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
