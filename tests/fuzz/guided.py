"""Inputs that are led by what they reach in the code, for the parsers that are written in Python.

    pip install atheris
    python -m tests.fuzz.guided TARGET [options of libFuzzer, such as -max_total_time=600 -max_len=4096]

Not of the suite: atheris has no wheel for every Python. What it finds becomes a test beside the parser's.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["perfdoc"]):
    from perfdoc.analyzers.device.range_groups import group_of
    from perfdoc.analyzers.host.calls import call_kind
    from perfdoc.analyzers.kernel_class.classify import classify
    from perfdoc.analyzers.kernels.part_names import meaning_of
    from perfdoc.compare.baseline_files import read_baseline
    from perfdoc.compare.stored import read_diagnosis
    from perfdoc.knobs.load import catalogue
    from perfdoc.knobs.pipeline_layout import stages_of
    from perfdoc.knobs.reading.entry import NotAConfigurationError
    from perfdoc.knobs.reading.file import read_entries
    from perfdoc.knobs.values import check_value, read_value
    from perfdoc.profiling.distributed.collective_name import parse_collective
    from perfdoc.profiling.errors import CaptureError
    from perfdoc.profiling.manifest import read_manifest
    from perfdoc.profiling.marks import parse_group_mark, parse_rank_mark
    from perfdoc.profiling.vocabulary import parse_compute
    from perfdoc.redact.texts import clean_blob, payload_json
    from perfdoc.redact.words import Names
    from perfdoc.results.names import NAME_LIMIT, PROSE_LIMIT, columns, natural, pieces, prose, shorten
    from perfdoc.traces import TraceError
    from perfdoc.traces.given_facts import given_facts
    from perfdoc.traces.kineto.names import short_name
    from perfdoc.traces.kineto.read import read_kineto
    from perfdoc.traces.kineto.repair import repair
    from perfdoc.traces.kineto.shapes import InputTexts
    from perfdoc.traces.kineto.values import Number, interval_ns
    from perfdoc.traces.memory.read import read_memory_snapshot
    from perfdoc.traces.model_config.read import read_model_config
    from perfdoc.traces.nsys.payload import HEADER, _decode, _unpack
    from perfdoc.traces.table import Strings
    from perfdoc.traces.training_logs.read import read_training_log

_FOLDER = Path(tempfile.mkdtemp(prefix="perfdoc-guided-"))


def _one_line(error: Exception) -> None:
    assert "\n" not in str(error), error


def _file(read: Callable[[Path], object], name: str) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        path = _FOLDER / name
        path.write_bytes(data)
        try:
            read(path)
        except (TraceError, CaptureError) as error:
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


def _blob(data: bytes) -> None:
    """A payload of an Nsight export, and its copy without names, which says the same."""
    key = HEADER.unpack_from(data)[0:3:2] if len(data) >= HEADER.size else (0, 0)
    layout = [("rank", 0, "<i"), ("size", 8, "<Q"), ("late", 60_000, "<Q"), ("negative", -4, "<Q")]
    read = _unpack(data, {key: layout})
    copy = clean_blob(data, {key: [(0, 4), (8, 8), (60_000, 8), (-4, 8)]})
    if copy is not None and data[:1] not in b"0123456789abcdefABCDEF \t\n":
        assert _unpack(copy, {key: layout}) == read, (read, copy)
    text = data.decode("utf-8", "replace")
    _decode(text)
    payload_json(Names(), text, {})


def _redact(data: bytes) -> None:
    """Copies of equal texts are equal, and end."""
    text = data.decode("utf-8", "replace")
    one, two = Names(), Names()
    for names in (one, two):
        names.of_range(text), names.of_call(text), names.of_kernel(text)
    assert (one.of_range(text), one.of_kernel(text)) == (two.of_range(text), two.of_kernel(text))


def _facts(data: bytes) -> None:
    words = data.decode("utf-8", "replace").split("\n")
    for given in (words, *([word] for word in words[:4])):
        try:
            given_facts(given)
        except ValueError as error:
            _one_line(error)


def _file_of_facts(name: str) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        path = _FOLDER / name
        path.write_bytes(data)
        for read in (lambda: given_facts([], path), lambda: read_model_config(path)):
            try:
                read()
            except ValueError as error:
                _one_line(error)

    return target


def _marks(data: bytes) -> None:
    """What is read from the names of ranges and calls."""
    text = data.decode("utf-8", "replace")
    for read in (parse_group_mark, parse_rank_mark, parse_compute, parse_collective, group_of, meaning_of):
        read(text)
    call_kind(text)
    stages_of(text)


def _settings(data: bytes) -> None:
    knobs = list(catalogue().values())
    knob = knobs[int.from_bytes(data[:2], "big") % len(knobs)]
    text = data[2:].decode("utf-8", "replace")
    for raw in (text, tuple(text.split(","))):
        try:
            check_value(knob, read_value(knob, raw))
        except ValueError as error:
            _one_line(error)


def _shown(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for shown, limit in ((shorten(text), NAME_LIMIT), (prose(text), PROSE_LIMIT), (shorten(text, 48), 48)):
        assert len(shown) <= limit, shown
        assert shown.isprintable(), shown
    assert "".join(piece for _, piece in pieces(text)).replace("`", "") == text.replace("`", "")
    assert columns(text) >= 0
    natural(text)


def _times(data: bytes) -> None:
    """Times as JSON has them, against fractions."""
    words = data.decode("ascii", "replace").split(" ")[:2]
    if len(words) < 2 or not all(_JSON_NUMBER.fullmatch(word) for word in words):
        return
    try:
        start, end = interval_ns(*(Number(w) if set(w) & set(".eE") else int(w) for w in words))
    except ValueError as error:
        _one_line(error)
        return
    exact = [Fraction(word) * 1000 for word in words]
    assert (start, end) == (round(exact[0]), round(sum(exact))), words


_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")


def _operator(data: bytes) -> None:
    InputTexts(Strings()).of("aten::mm", b'{"Input Dims": ' + data + b"}")
    InputTexts(Strings()).of("aten::mm", data)


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "pickle": _file(read_memory_snapshot, "m.pickle"),
    "kineto": _file(read_kineto, "t.json"),
    "log": _file(read_training_log, "t.log"),
    "repair": _repair,
    "name": _name,
    "yaml": _config("a.yaml"),
    "shell": _config("a.sh"),
    "python": _config("a.py"),
    "blob": _blob,
    "redact": _redact,
    "facts": _facts,
    "facts-yaml": _file_of_facts("f.yaml"),
    "facts-json": _file_of_facts("config.json"),
    "marks": _marks,
    "settings": _settings,
    "shown": _shown,
    "times": _times,
    "operator": _operator,
    "diagnosis": _file(read_diagnosis, "diagnosis.json"),
    "baseline": _file(read_baseline, "baseline.json"),
    "manifest": _file(read_manifest, "run.json"),
}


if __name__ == "__main__":
    chosen = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, chosen)
    atheris.Fuzz()
