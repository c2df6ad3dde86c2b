"""`python -m perfdoc` and the `perfdoc` command: what ends here ends in a line and an exit code.

0 fine, 1 `--fail-on`, 2 usage, bad input or an error of perfdoc's own, 130 interrupted, 141 standard output
closed by its reader (what a shell reports of a program that SIGPIPE ended), 143 and 129 ended by SIGTERM and
SIGHUP, after clearing up as an interrupt does.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from traceback import walk_stack

from perfdoc import patterns
from perfdoc.cli.streams import StdoutError, guard_streams
from perfdoc.profiling.malloc import reuse_memory
from perfdoc.run.stop import STOPS, Stopped, raise_stopped, stop_behind

EXIT_ERROR = 2
EXIT_CLOSED_PIPE = 141
_GARBAGE_THRESHOLD = 300_000
"""New objects before they are looked through for cycles. Python's 700 cost 4 % of an analysis, which makes
few cycles and keeps most of what it makes; a small one keeps 160,000, and one look at them is 3 % of it."""
_PLACES = 32_000
"""Of the stack of `main`, 8 bytes each. Python takes frames from pieces of 16 KB: a call at the edge maps the
next, and gives it back when it returns, a thousand times in a small analysis, 2 % of it. A frame that wants
more gets a larger piece, in which all calls below it have room."""


def command() -> None:
    """The `perfdoc` command: `main`, and an end that takes nothing apart that goes with the process, which
    is 5 % of a small analysis. Who follows this one, as a profiler does, or after it, sees the usual end."""
    try:
        main()
    except SystemExit as end:
        if not isinstance(end.code, int | None) or _is_followed():
            raise
        code = end.code or EXIT_ERROR  # what cannot be written at the end did not end well
        try:  # as multiprocessing ends the processes that it forks
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            code = end.code or 0
        finally:
            os._exit(code)


def _is_followed() -> bool:
    """Whether something comes after the command: a profiler or a debugger (from Python 3.12 on tools of
    sys.monitoring), the prompt of `python -i`, or its caller, where that is no script nor -m."""
    tools = getattr(sys, "monitoring", None)
    stays = sys.flags.interactive or os.environ.get("PYTHONINSPECT")
    if stays or sys.gettrace() or sys.getprofile() or (tools and any(map(tools.get_tool, range(6)))):
        return True
    callers = [frame.f_code.co_name for frame, _ in walk_stack(sys._getframe(2))]
    return callers not in (["<module>"], ["<module>", "_run_code", "_run_module_as_main"])


def main() -> None:
    """Run the command line and leave with its exit code; a traceback is shown under --debug only."""
    gc.set_threshold(_GARBAGE_THRESHOLD, 50, 50)
    reuse_memory()
    raise_stopped()
    try:
        code = _run()
        patterns.keep()
    except (Stopped, KeyboardInterrupt) as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        sys.stderr.write(f"perfdoc: {STOPS[number]}\n")
        code = 128 + number
    gc.freeze()  # what is left goes with the process: looking through it takes 0.05 s
    sys.exit(code)


main.__code__ = main.__code__.replace(co_stacksize=_PLACES)


def _run() -> int | str | None:
    guard_streams()
    try:
        try:
            from perfdoc.cli.application import app

            app()
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
    except StdoutError as error:
        if error.closed_pipe:
            return EXIT_CLOSED_PIPE
        sys.stderr.write(f"perfdoc: {error}\n")
        return EXIT_ERROR
    except Exception as error:  # noqa: BLE001 - the last net: whatever it is, 1 would mean --fail-on
        if stop := stop_behind(error):
            raise stop from None
        return _internal_error(error)
    return code


def _internal_error(error: Exception) -> int:
    if "--debug" in sys.argv:
        import traceback

        traceback.print_exception(error)
    elif isinstance(error, MemoryError):
        sys.stderr.write(
            "perfdoc: out of memory. Analyse fewer files at once (--jobs 1), or with --no-replay.\n"
        )
    else:
        from perfdoc.results.names import shorten

        said = shorten(f"{type(error).__name__}: {error}", 300)
        sys.stderr.write(f"perfdoc: internal error: {said}; run again with --debug to see where.\n")
    return EXIT_ERROR


if __name__ == "__main__":
    command()
