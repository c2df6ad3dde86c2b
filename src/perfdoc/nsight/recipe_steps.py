"""The steps of perfdoc's recipe, each a process: measure one report, or make one diagnosis of them all.

`python -m perfdoc.nsight.recipe_steps measure [OPTIONS] REPORT`, with options of `perfdoc analyze`, writes a
measurement to standard output; `… reduce --output DIR FILE…` reads such files and writes report.html,
report.md and diagnosis.json. recipe_job starts them.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

from perfdoc.analyzers.job import check_distinct
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.asked import UserError, parse_request
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.diagnose.measuring import replaying
from perfdoc.profiling.whole_file import write_all
from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.results import to_json
from perfdoc.summaries.reading import measure_or_explain
from perfdoc.traces import NoGpuActivityError, TraceError
from perfdoc.version import __version__

_REPORTS = 16
"""Ranks of more reports are not joined if their windows are large."""
_HEAD = f"perfdoc measurement {__version__}\n".encode()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a step. Returns the exit code; what went wrong is the last line on standard error."""
    parser = argparse.ArgumentParser(prog="perfdoc.nsight.recipe_steps")
    steps = parser.add_subparsers(dest="step", required=True)
    one = steps.add_parser("measure")
    one.add_argument("--window")
    one.add_argument("--step-range")
    one.add_argument("--data-range")
    one.add_argument("--comm-kernel")
    one.add_argument("--set", action="append", default=[])
    one.add_argument("--config", type=Path)
    one.add_argument("--model-config", type=Path)
    one.add_argument("report")
    all_ = steps.add_parser("reduce")
    all_.add_argument("--output", type=Path, required=True)
    all_.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    try:
        if given.step == "measure":
            request = parse_request(
                [given.report],
                window=given.window,
                step_range=given.step_range,
                data_range=given.data_range,
                comm_kernel=given.comm_kernel,
                settings=given.set,
                config=given.config,
                model_config=given.model_config,
            )
            sys.stdout.buffer.write(measure(request))
        elif given.step == "reduce":
            reduce(given.files, given.output)
    except (UserError, TraceError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def measure(request: AnalysisRequest) -> bytes:
    """One report's measurement, for `reduce` of the same version. Raises TraceError."""
    (report,) = request.captures
    # Pickled like what a worker process of `perfdoc analyze` returns: it goes to a process of ours only.
    return _HEAD + pickle.dumps(
        # How many reports there are is not known here.
        measure_or_explain(report, request, replaying(_REPORTS))
    )


def reduce(files: Sequence[Path], output: Path) -> None:
    """One diagnosis of all measurements into a folder. Raises UserError.

    Raises TraceError where two reports are of one rank.
    """
    results = [_read(file) for file in files]
    measured = [r for r in results if isinstance(r, CaptureMeasurement)]
    silent = [r for r in results if isinstance(r, NoGpuActivityError)]
    if not measured:
        raise UserError(str(silent[0]))
    check_distinct(measured)
    diagnosis = diagnose(measured, silent)
    contents = {
        "report.html": render_html(diagnosis).encode(),
        "report.md": render_markdown(diagnosis).encode(),
        "diagnosis.json": to_json(diagnosis),
    }
    try:
        write_all({output / name: content for name, content in contents.items()}, output)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}.") from error


def _read(file: Path) -> object:
    content = file.read_bytes()
    if not content.startswith(_HEAD):
        raise UserError(
            f"a report was measured by another version than {__version__}: "
            "install one version of perfdoc on every machine of the cluster."
        )
    return pickle.loads(content[len(_HEAD) :])


if __name__ == "__main__":
    sys.exit(main())
