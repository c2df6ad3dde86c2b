"""One run of the user's own command with a configuration, and the step times that it prints."""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdoc.profiling.errors import UserError
from perfdoc.results.names import shorten
from perfdoc.traces import TraceError
from perfdoc.traces.training_logs.read import read_training_log
from perfdoc.tune.result import Change, Row

PLACE = "{settings}"
_KNOWN_LOGS = "the log lines of Megatron-LM, Megatron-Bridge, NeMo, torchtitan and Hugging Face Trainer"
_WARMUP_FRAC = 1 / 3
"""Of the step times of a run, the first, that do not count."""
_TIMES_LONGER, _LEAST_S = 5.0, 120.0
"""A run may take so many times what the unchanged one took, and at least so long."""
_TAIL_BYTES = 200_000
_LONGEST_LOG = 256 << 20
_MS_OF = {"ms": 1.0, "s": 1e3}


class FailedRunError(Exception):
    """A configuration that did not run, in words."""


class NoStepTimesError(UserError):
    """The command ended well and printed no step time."""


@dataclass(kw_only=True)
class OwnCommand:
    """The user's command, `{settings}` where the settings go.

    A flag that stands before it may be set again: of two the later one wins in the trainers known here.
    """

    words: str
    """As it was given."""
    pattern: re.Pattern[str] | None
    """Its first group is a step's time: in seconds if it is called `s`, else in milliseconds."""
    longest_s: float | None = None
    """Set by the first run."""

    def run(self, row: Row, path: Path) -> float:
        """The median step of a run in milliseconds, its first third left out; its output is `path`.log.

        Raises FailedRunError where it fails, NoStepTimesError where it prints no step time.
        """
        log = path.with_name(f"{path.name}.log")
        text = self.words.replace(PLACE, settings_words(row.changes))
        began = time.monotonic()
        with log.open("wb") as out:
            # In a group of its own, so that all that it starts can be ended with it.
            process = subprocess.Popen(
                text, shell=True, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code = process.wait(self.longest_s)
            except subprocess.TimeoutExpired:
                _end(process)
                raise FailedRunError(f"did not end in {self.longest_s:.0f} s") from None
            except BaseException:
                _end(process)
                raise
        if code:
            raise FailedRunError(_why(code, log))
        if self.longest_s is None:
            self.longest_s = max(_LEAST_S, _TIMES_LONGER * (time.monotonic() - began))
        times = self._times(log)
        if not times:
            known = f"{_KNOWN_LOGS}; --pattern REGEX names others"
            wanted = known if self.pattern is None else self.pattern.pattern
            raise NoStepTimesError(f"{log}: shows no step time. Looked for {wanted}.")
        return statistics.median(times[math.floor(len(times) * _WARMUP_FRAC) :])

    def _times(self, log: Path) -> list[float]:
        if log.stat().st_size > _LONGEST_LOG:
            raise FailedRunError(f"its log is larger than {_LONGEST_LOG >> 20} MiB")
        if self.pattern is None:
            try:
                return [s.duration_ns / 1e6 for s in read_training_log(log).steps]
            except TraceError:
                return []
        unit = _MS_OF["s" if "s" in self.pattern.groupindex else "ms"]
        text = log.read_text(encoding="utf-8", errors="replace")
        found = (_number(m[1]) for line in text.splitlines() for m in self.pattern.finditer(line))
        return [n * unit for n in found if n is not None]


def own_command(command: str, pattern: str | None) -> OwnCommand:
    """Checked. Raises UserError."""
    if PLACE not in command:
        raise UserError(f"--command: write {PLACE} where the settings go.")
    if pattern is None:
        return OwnCommand(words=command, pattern=None)
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--pattern {pattern!r}: is not a regular expression: {error}.") from error
    if not found.groups:
        raise UserError(f"--pattern {pattern!r}: put the milliseconds in a group: 'step took ([0-9.]+) ms'.")
    return OwnCommand(words=command, pattern=found)


def settings_words(changes: Sequence[Change]) -> str:
    """Settings as words of a command line. Raises FailedRunError where one cannot be said so."""
    words: list[str] = []
    for change in changes:
        if change.way not in ("option", ""):
            raise FailedRunError(f"is not said by an option, so {PLACE} cannot hold it: {change.written}")
        words += shlex.split(change.written)
    return shlex.join(words)


def _number(text: str | None) -> float | None:
    try:
        found = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return found if 0 < found < 1e8 else None


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(10)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        else:
            return


def _why(code: int, log: Path) -> str:
    """How a run ended: out of memory, or its last words."""
    with log.open("rb") as opened:
        opened.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        tail = opened.read().decode("utf-8", errors="replace")
    if "out of memory" in tail.lower() or "outofmemory" in tail.lower():
        return "out of memory"
    last = next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "it printed nothing")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{how}: {shorten(last, 200)}"
