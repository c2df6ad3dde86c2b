"""Inputs that are led by what they reach in the code, for the parsers that are written in Python.

    pip install atheris
    python -m tests.fuzz.guided TARGET [options of libFuzzer, such as -max_total_time=600 -max_len=4096]

Not of the suite: atheris has no wheel for every Python. What it finds becomes a test beside the parser's.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["perfdoc"]):
    from perfdoc.analyzers.kernel_class.classify import classify
    from perfdoc.knobs.reading.entry import NotAConfigurationError
    from perfdoc.knobs.reading.file import read_entries
    from perfdoc.traces import TraceError
    from perfdoc.traces.kineto.names import short_name
    from perfdoc.traces.kineto.read import read_kineto
    from perfdoc.traces.kineto.repair import repair
    from perfdoc.traces.memory.read import read_memory_snapshot
    from perfdoc.traces.training_log import read_training_log

_FOLDER = Path(tempfile.mkdtemp(prefix="perfdoc-guided-"))


def _one_line(error: Exception) -> None:
    assert "\n" not in str(error)


def _file(read: Callable[[Path], object], name: str) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        path = _FOLDER / name
        path.write_bytes(data)
        try:
            read(path)
        except TraceError as error:
            _one_line(error)

    return target


def _name(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    classify(short_name(text), text)


def _repair(data: bytes) -> None:
    repaired = repair(data)
    assert repair(repaired) == repaired


def _config(name: str) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        try:
            read_entries(data.decode("utf-8", "replace"), name)
        except NotAConfigurationError as error:
            _one_line(error)

    return target


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "pickle": _file(read_memory_snapshot, "m.pickle"),
    "kineto": _file(read_kineto, "t.json"),
    "log": _file(read_training_log, "t.log"),
    "repair": _repair,
    "name": _name,
    "yaml": _config("a.yaml"),
    "shell": _config("a.sh"),
    "python": _config("a.py"),
}


if __name__ == "__main__":
    chosen = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, chosen)
    atheris.Fuzz()
