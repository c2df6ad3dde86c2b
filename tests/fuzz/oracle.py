"""What any input may come to: a diagnosis that adds up, in every rendering, or one line of use to users."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.diagnose.asked import parse_request
from perfdoc.diagnose.diagnosis import diagnosis_of
from perfdoc.diagnose.measuring import measure_all
from perfdoc.profiling.errors import UserError
from perfdoc.reports.ci import render_github, render_junit
from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.screen import render_brief, render_screen
from perfdoc.reports.text import render_text
from perfdoc.results import Diagnosis, from_json, to_json
from perfdoc.traces import CopyKind, Trace, TraceError
from perfdoc.traces.load import read_trace
from perfdoc.traces.run_facts import with_run_facts
from perfdoc.traces.summary_file import is_summary
from tests.command import perfdoc
from tests.fuzz.base import NAMES

LIMIT_S = 20
LONGEST_LINE = 3_000
RENDER_ALL_FRAC = 0.3
"""Share of inputs whose diagnosis is rendered in every way; the others' in two."""
_CODES = {0, 1, 2, 3}
"""Exit codes that README documents of commands that end by themselves."""


class Found(AssertionError):
    """An input that comes to something else."""


def expect(holds: bool, what: object) -> None:
    """An assertion that optimisation leaves."""
    if not holds:
        raise Found(str(what))


class _Rung(BaseException):
    """The alarm, which no `except Exception` on the way takes for a fault of its own."""


@contextmanager
def in_time(limit_s: int) -> Iterator[None]:
    """Found where the block takes longer, as far as Python gets to see it."""

    def ring(number: int, frame: object) -> None:
        raise _Rung

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(limit_s)
    try:
        yield
    except _Rung:
        raise Found(f"took more than {limit_s} s") from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def analysed(words: Sequence[str | Path], rng: random.Random, *, config: Path | None = None) -> str:
    """Take captures through everything; how it ended. Raises Found, or what should not have been raised."""
    try:
        request = parse_request([str(w) for w in words], config=config, jobs=1)
        found = measure_all(request)
        if not found.captures and found.silent:
            raise found.silent[0]
        diagnosis, _ = diagnosis_of(found, config)
    except (TraceError, UserError) as error:
        _one_line(str(error))
        return f"refused: {type(error).__name__}"
    for capture in found.captures:
        if not is_summary(capture.path):
            _check_ledgers(capture)
    broken = [f"{r.code}: {r.reason}" for r in diagnosis.rules if r.state == "error"]
    expect(not broken, broken)
    _check_renderings(diagnosis, rng)
    return f"{len(diagnosis.ranks)} ranks"


def commanded(*words: str | Path, cwd: Path) -> str:
    """Run a command; how it ended. Raises Found."""
    done = perfdoc(*words, cwd=cwd)
    told = done.stderr[-1_500:]
    expect(done.returncode in _CODES, f"exit code {done.returncode}: {told}")
    for word in ("Traceback", "internal error", "Warning:"):
        expect(word not in done.stderr, told)
    if done.returncode == 2:
        expect(done.stderr.strip() != "", "nothing said")
        for line in filter(str.strip, done.stderr.splitlines()):
            _one_line(line)
    return f"{words[0]}: {done.returncode}"


def _one_line(text: str) -> None:
    expect(bool(text.strip()) and "\n" not in text and len(text) < LONGEST_LINE, f"no line: {text[:500]!r}")
    for word in ("Traceback", "NoneType", "object at 0x", "unsupported operand", "codec can't"):
        expect(word not in text, f"Python's own words: {text[:500]!r}")


def _check_ledgers(capture: CaptureMeasurement) -> None:
    trace = with_run_facts(read_trace(capture.path))
    for rank in capture.ranks:
        ledger, window = rank.ledger.by_leaf, rank.window.end_ns - rank.window.start_ns
        expect(all(v >= 0 for v in ledger.values()) and sum(ledger.values()) == window, (ledger, window))
        if not rank.on_host:
            _check_unions(trace, rank)


def _check_unions(trace: Trace, rank: RankMeasurement) -> None:
    """The device's busy and computing time against a count from boundary to boundary."""
    place = [(d.process, d.ordinal) for d in trace.devices].index((rank.device.process, rank.device.ordinal))
    window = rank.window.start_ns, rank.window.end_ns
    kernels, graphs, copies = trace.kernels, trace.graph_launches, trace.copies
    names, full_names = trace.names(kernels.name), trace.names(kernels.full_name)
    mine = [i for i in range(len(kernels)) if kernels.device[i] == place]
    spans = [(int(kernels.start_ns[i]), int(kernels.end_ns[i])) for i in mine]
    whole = [
        (int(t.start_ns[i]), int(t.end_ns[i]))
        for t in (graphs, copies)
        for i in range(len(t))
        if t.device[i] == place
    ]
    ledger = rank.ledger
    communication, idle = sum(ledger.exposed_comm.by_name.values()), sum(ledger.idle.by_name.values())
    busy = covered(spans + whole, *window)
    expect(window[1] - window[0] - idle == busy, f"busy {busy}, idle {idle} of {window}")
    if not all(names[i] in NAMES and names[i] == full_names[i] for i in mine):
        return  # what is communication is then for the names to say, and nobody counts that here
    computes = [s for s, i in zip(spans, mine, strict=True) if not NAMES[names[i]]]
    computes += [
        (int(graphs.start_ns[i]), int(graphs.end_ns[i]))
        for i in range(len(graphs))
        if graphs.device[i] == place
    ]
    compute = covered(computes, *window)
    expect(ledger.compute == compute, f"compute {ledger.compute}, counted {compute}")
    if not np.any(copies.kind == CopyKind.PEER_TO_PEER):
        communicates = [s for s, i in zip(spans, mine, strict=True) if NAMES[names[i]]]
        exposed = covered(computes + communicates, *window) - compute
        expect(communication == exposed, f"exposed communication {communication}, counted {exposed}")


def covered(spans: Sequence[tuple[int, int]], start: int, end: int) -> int:
    """Nanoseconds of [start, end) in which any span is open, counted from one boundary to the next."""
    changes: dict[int, int] = {}
    for a, b in spans:
        a, b = max(a, start), min(b, end)
        if a < b:
            changes[a] = changes.get(a, 0) + 1
            changes[b] = changes.get(b, 0) - 1
    total, opened, since = 0, 0, 0
    for at in sorted(changes):
        if opened:
            total += at - since
        opened, since = opened + changes[at], at
    return total


def _check_renderings(diagnosis: Diagnosis, rng: random.Random) -> None:
    serial = to_json(diagnosis)
    expect(to_json(from_json(serial)) == serial, "another diagnosis after a way through JSON")
    for rank in json.loads(serial)["ranks"]:
        ledger = _leaves(rank["ledger_ns"])
        expect(ledger == rank["window"]["end_ns"] - rank["window"]["start_ns"], rank["ledger_ns"])
    texts = [render_screen(diagnosis, report=None, width=80, colour=False)]
    every = [
        lambda: render_text(diagnosis, width=100, colour=False),
        lambda: render_brief(diagnosis, report=None),
        lambda: render_markdown(diagnosis),
        lambda: render_html(diagnosis),
        lambda: render_github(diagnosis, frozenset({"ANY"})),
        lambda: render_junit(diagnosis, frozenset({"ANY"})),
    ]
    texts += [render() for render in (every if rng.random() < RENDER_ALL_FRAC else rng.sample(every, 1))]
    for text in texts:
        text.encode()
        bad = {c for c in set(text) if not c.isprintable() and c not in "\n\t"}
        expect(not bad, f"characters that hide: {bad}")
        expect(len(text) < 8 << 20, f"a page of {len(text)} characters")


def _leaves(tree: Any) -> int:
    return sum(map(_leaves, tree.values())) if isinstance(tree, dict) else int(tree)
