"""What a notebook calls: the options of the commands of the same names, and their one way through perfdoc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfdoc.notebook.comparison import Comparison
from perfdoc.notebook.errors import PerfdocError, one_line
from perfdoc.notebook.report import Origin, Report

PathLike = str | Path


def analyze(
    paths: PathLike | Sequence[PathLike],
    *,
    window: str | None = None,
    step_range: str | None = None,
    data_range: str | None = None,
    comm_kernel: str | None = None,
    settings: Mapping[str, object] | Sequence[str] = (),
    config: PathLike | None = None,
    model_config: PathLike | None = None,
    replay: bool = True,
    jobs: int | None = None,
) -> Report:
    """Say where the time of captures went, as `perfdoc analyze` does.

    paths: captures, folders or glob patterns, one file or one for each rank. settings: facts of the job, as
    of --set: `{"tp": 8}` or `["tp=8"]`. jobs: files read at once; default: one per core. The other options
    are those of the command, of the same names. Raises PerfdocError.
    """
    with one_line():
        from perfdoc.compare.side import measured_side
        from perfdoc.diagnose.asked import parse_request
        from perfdoc.diagnose.measuring import analysed

        given = _words(paths)
        if not given:
            raise PerfdocError("no capture is named.")
        facts = [f"{k}={v}" for k, v in settings.items()] if isinstance(settings, Mapping) else settings
        request = parse_request(
            given,
            window=window,
            step_range=step_range,
            data_range=data_range,
            comm_kernel=comm_kernel,
            settings=_words(facts),
            config=_path(config),
            model_config=_path(model_config),
            replay=replay,
            leave_out=True,
            jobs=jobs,
        )
        done = analysed(request)
        side = None
        if done.diagnosis.ranks:
            side = measured_side(", ".join(given), done.captures, done.diagnosis, done.settings)
        return Report(done.diagnosis, origin=Origin(request=request, side=side))


def load(path: PathLike) -> Report:
    """A stored diagnosis: a diagnosis.json, or the folder of a report or of a run. Raises PerfdocError."""
    with one_line():
        from perfdoc.compare.stored import diagnosis_in, read_diagnosis

        return Report(read_diagnosis(diagnosis_in(Path(path)))[0])


def diff(
    before: PathLike | Report,
    after: PathLike | Report,
    *,
    config_before: PathLike | None = None,
    config_after: PathLike | None = None,
    window: str | None = None,
    step_range: str | None = None,
    data_range: str | None = None,
    comm_kernel: str | None = None,
    replay: bool = True,
    jobs: int | None = None,
) -> Comparison:
    """Explain what changed between two measurements of one job, as `perfdoc diff` does.

    before, after: what the command takes, or reports of `perfdoc.analyze`, to which the options do not apply.
    Raises PerfdocError.
    """
    with one_line():
        from perfdoc.compare.diff.two_sides import compare
        from perfdoc.compare.side import Loaded, load
        from perfdoc.diagnose.asked import parse_request

        request = parse_request(
            (),
            window=window,
            step_range=step_range,
            data_range=data_range,
            comm_kernel=comm_kernel,
            replay=replay,
            jobs=jobs,
        )

        def side(given: PathLike | Report, config: PathLike | None) -> Loaded:
            if not isinstance(given, Report):
                return load(str(given), request, config=_path(config))
            if given.origin is None or given.origin.side is None:
                raise PerfdocError("a report without captures of ranks: give its path in place of it.")
            return given.origin.side

        return Comparison(compare(side(before, config_before), side(after, config_after)))


def _words(given: PathLike | Sequence[PathLike]) -> list[str]:
    return [str(given)] if isinstance(given, str | Path) else [str(one) for one in given]


def _path(given: PathLike | None) -> Path | None:
    return None if given is None else Path(given)
