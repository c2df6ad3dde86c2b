"""What a run leaves behind per step, and what it tells the person at the terminal."""

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import IO

from perfdoc.profiling.logs import StepRecord
from perfdoc.profiling.own.telemetry import Telemetry
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.step_log import StepLog


@dataclass(frozen=True, kw_only=True)
class EvalRecord:
    """One evaluation, as one line of `steps/eval.jsonl` (rank 0 only)."""

    step: int
    time_ns: int
    tokens: int
    loss: float


class RunLog:
    """Writes the step files of one rank; rank 0 also speaks on standard error."""

    def __init__(self, run: RunDirectory | None, rank: int) -> None:
        self._run, self.shown = run, Telemetry(services=())
        self._speaks = rank == 0
        self._in_place = self._speaks and sys.stderr.isatty()
        """On a terminal steps without a line of their own pass by on the last one."""
        self._steps = None if run is None else StepLog(run.steps_path(rank))
        self._evals: IO[str] | None = None
        self._first: tuple[int, float] | None = None
        """The first step and when it ended, in seconds: it takes longer than those that follow."""
        if run is not None and rank == 0:
            self._evals = (run.path / "steps" / "eval.jsonl").open("a", encoding="utf-8")

    def step(
        self, record: StepRecord, last: int, *, mfu: float | None, of_measured: bool, print_line: bool
    ) -> None:
        """Append one line at once, so that a killed run keeps what it did. `mfu` is for the terminal, and
        whether the peak was measured."""
        if self._steps is not None:
            self._steps.keep(record)
        if self._run is not None:
            self.shown.begins(self._run.path)
            self.shown.add(record)
        if self._first is None:
            self._first = record.step, time.monotonic()
        if self._speaks and print_line:
            share = "" if mfu is None else f"  {_in_words(mfu, of_measured=of_measured)}"
            norm = "-" if record.gradient_norm is None else f"{record.gradient_norm:.3f}"
            rate = (record.tokens or 0) / (record.duration_ns * 1e-9)
            loss = "-" if record.loss is None else f"{record.loss:.4f}"
            left = self._left(record.step, last)
            self.say(
                f"step {record.step}/{last}  loss {loss}  grad norm {norm}  "
                f"{record.duration_ns / 1e6:.0f} ms  {rate:,.0f} tokens/s{share}{left}"
            )
        elif self._in_place:  # whoever writes next begins at the left
            sys.stderr.write(f"\033[Kstep {record.step}/{last}\r")
            sys.stderr.flush()

    def _left(self, step: int, last: int) -> str:
        """How long still, from all steps behind the first, evaluations and profiling included."""
        if self._first is None or not self._first[0] < step < last:
            return ""
        per_step_s = (time.monotonic() - self._first[1]) / (step - self._first[0])
        left_s = round(per_step_s * (last - step))
        hours = f"{left_s // 3600}:{left_s // 60 % 60:02}" if left_s >= 3600 else f"{left_s // 60}"
        return f"  {hours}:{left_s % 60:02} left"

    def evaluation(self, record: EvalRecord) -> None:
        """Append one evaluation."""
        if self._evals is not None:
            self._evals.write(json.dumps(asdict(record)) + "\n")
            self._evals.flush()
        self.say(f"step {record.step}: validation loss {record.loss:.4f}")

    def say(self, message: str) -> None:
        """Rank 0 only."""
        if self._speaks:
            sys.stderr.write(("\033[K" if self._in_place else "") + message + "\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Close the files."""
        self.shown.ends()
        if self._steps is not None:
            self._steps.close()
        if self._evals is not None:
            self._evals.close()


def _in_words(mfu: float, *, of_measured: bool) -> str:
    """Of a share above 1 no figure: the peak that was measured is too low, or the FLOPs are wrong."""
    if mfu <= 1:
        return f"MFU {100 * mfu:.1f} %"
    if of_measured:
        return "MFU above 100 % of the measured peak: measure it again (perfdoc peak --again)"
    return "MFU above 100 %: the peak or the FLOPs are wrong"
